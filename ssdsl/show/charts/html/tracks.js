// tracks.js: draws a track per row: what is in view of its compute stream, and under it of its transfers.

const SMALLEST = 1; // pixels of an event that is drawn by itself
let isMerged = false; // whether some are not

function drawTracks(ctx) {
  const { width, tracksHeight: height, left } = geometry;
  ctx.fillStyle = theme.panel;
  ctx.fillRect(0, 0, width, height);
  const ticks = timeTicks();
  isMerged = false;
  const first = Math.max(0, Math.floor(state.scroll / geometry.rowHeight));
  const last = Math.min(rows.length - 1, Math.floor((state.scroll + height - AXIS) / geometry.rowHeight));
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, AXIS, width, height - AXIS);
  ctx.clip();
  for (let row = first; row <= last; row++) drawLaneGround(ctx, row);
  drawGrid(ctx, ticks, AXIS, Math.min(height, rowTop(rows.length)));
  ctx.beginPath();
  ctx.rect(left, AXIS, width - left, height - AXIS);
  ctx.save();
  ctx.clip();
  for (let row = first; row <= last; row++) drawRow(ctx, row);
  drawFlows(ctx);
  drawHovered(ctx);
  ctx.restore();
  for (let row = first; row <= last; row++) drawRowName(ctx, row);
  drawCrosshair(ctx, AXIS, height);
  ctx.restore();
  drawAxis(ctx, ticks);
  drawScrollbar(ctx);
}

function drawLaneGround(ctx, row) {
  const top = rowTop(row);
  if (row === state.selected && memories.length) {
    ctx.fillStyle = theme.mark;
    ctx.fillRect(0, top, GUTTER - 8, geometry.rowHeight);
    ctx.fillStyle = theme.ink;
    ctx.fillRect(0, top, 3, geometry.rowHeight);
  }
  ctx.fillStyle = theme.lane;
  ctx.fillRect(geometry.left, top + PAD, geometry.right - geometry.left, innerHeight());
  ctx.fillStyle = theme.line;
  ctx.fillRect(0, Math.round(top + geometry.rowHeight) - 1, geometry.width, 1);
}

function drawRow(ctx, row) {
  const box = laneBox(row, COMPUTE, 0);
  drawLane(ctx, tracks[row].compute, box.y, box.height, true);
  tracks[row].transfers.forEach((one, at) => {
    const { y, height } = laneBox(row, 1, at);
    drawLane(ctx, one, y, height, height >= 11);
  });
}

function drawLane(ctx, one, y, height, isLabelled) {
  let merged = false;
  for (let k = firstAtLeast(one.reach, state.from); k < one.events.length && one.start[k] <= state.to; k++) {
    const e = one.events[k];
    const x = xOf(events.start[e]);
    const end = xOf(events.end[e]);
    if (end - x >= SMALLEST) {
      drawEvent(ctx, e, x, end, y, height, isLabelled);
    } else {
      if (!merged) beginColumns();
      merged = true;
      addToColumns(e, x, end);
    }
  }
  if (merged) drawColumns(ctx, y, height);
  isMerged ||= merged;
  ctx.globalAlpha = 1;
}
