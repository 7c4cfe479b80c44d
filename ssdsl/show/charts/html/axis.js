// axis.js: draws what is around the events: the time axis, the names of the rows, the pointer's line.

function drawGrid(ctx, ticks, top, bottom) {
  ctx.fillStyle = theme.grid;
  for (const { x } of ticks) ctx.fillRect(Math.round(x), top, 1, bottom - top);
}

function drawRowName(ctx, row) {
  const { name, devices, ranks, device } = rows[row];
  const room = GUTTER - 34;
  const facts = [`${counted(devices, "device")}${devices ? ` · ${devices === 1 ? "rank" : "ranks"} ${ranks}` : ""}`];
  facts.push([device, `computes ${share(busy[row])}`].filter(Boolean).join(" · "));
  const shown = facts.slice(0, Math.max(0, Math.floor((geometry.rowHeight - 26) / 14)));
  let y = rowTop(row) + geometry.rowHeight / 2 - (shown.length * 15) / 2 + 0.5;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.font = font(13, 600);
  ctx.fillStyle = theme.ink;
  ctx.fillText(shortened(ctx, name, room), 16, y);
  ctx.font = font(11);
  ctx.fillStyle = theme.muted;
  if (!shown.length) {
    ctx.textAlign = "right";
    ctx.fillText(shortened(ctx, ranks, room - 20 - Math.min(room, ctx.measureText(name).width * 1.2)), GUTTER - 20, y);
  }
  for (const fact of shown) ctx.fillText(shortened(ctx, fact, room), 16, (y += 15.5));
}

function drawAxis(ctx, ticks) {
  const { left, right, width } = geometry;
  ctx.fillStyle = theme.line;
  ctx.fillRect(0, AXIS - 1, width, 1);
  ctx.font = font(11);
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.muted;
  for (const { x, label } of ticks) {
    const half = widthOf(ctx, label) / 2;
    if (x + half < width - 2) ctx.fillText(label, Math.max(x, left - 4), AXIS / 2);
  }
  ctx.textAlign = "left";
  ctx.fillText(shortened(ctx, counted(rows.length, "row"), GUTTER - 60), 16, AXIS / 2);
  if (state.to - state.from < total * 0.999) {
    ctx.fillStyle = theme.ink;
    const from = left + (state.from / total) * (right - left);
    ctx.fillRect(from, AXIS - 3, Math.max(6, ((state.to - state.from) / total) * (right - left)), 3);
  }
}

function drawCrosshair(ctx, top, bottom) {
  const x = state.pointer?.x ?? -1;
  if (x < geometry.left || x > geometry.width) return;
  ctx.fillStyle = theme.crosshair;
  ctx.fillRect(Math.round(x), top, 1, bottom - top);
}

function drawScrollbar(ctx) {
  const inside = geometry.tracksHeight - AXIS;
  const content = rows.length * geometry.rowHeight;
  if (content <= inside + 1) return;
  ctx.fillStyle = theme.faint;
  const length = Math.max(24, (inside * inside) / content);
  const at = (state.scroll / (content - inside)) * (inside - length);
  ctx.beginPath();
  ctx.roundRect(geometry.width - 7, AXIS + at + 2, 4, length - 4, 2);
  ctx.fill();
}
