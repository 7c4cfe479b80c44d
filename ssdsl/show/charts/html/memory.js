// memory.js: draws the memory of the rows over the same time, that of the selected one as a stack of its parts.

const memoryOf = new Map(memories.map((memory) => [memory.row, memory]));
for (const memory of memories) {
  memory.times = Float64Array.from(memory.times);
  memory.bytes = Float64Array.from(memory.bytes);
}
const highest = memories.reduce(
  (most, memory) => (most === null || memory.peakBytes > most.peakBytes ? memory : most),
  null,
);
if (highest) state.selected = highest.row;

const TOP = 20; // pixels above the largest value
const BOTTOM = 8;
const MERGED = 2.5; // pixels whose steps become one
const BETWEEN = 0.5; // how much is seen of what is there for a part of a merged step
const NEAR = 2; // a capacity below twice the largest peak is drawn

// The largest value shown: the peaks, and the selected row's capacity if that is near.
function memoryLimit() {
  const capacity = memoryOf.get(state.selected)?.capacity ?? 0;
  const peak = highest?.peakBytes || 1;
  return capacity <= NEAR * peak ? Math.max(peak, capacity) : peak;
}

const byteY = (bytes) =>
  geometry.memoryHeight - BOTTOM - (bytes / memoryLimit()) * (geometry.memoryHeight - BOTTOM - TOP);

function drawMemory(ctx) {
  const { width, memoryHeight: height, left } = geometry;
  ctx.fillStyle = theme.panel;
  ctx.fillRect(0, 0, width, height);
  drawGrid(ctx, timeTicks(), 0, height - BOTTOM);
  drawByteAxis(ctx);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, 0, width - left, height);
  ctx.clip();
  ctx.lineJoin = "round";
  const selected = memoryOf.get(state.selected);
  if (selected) fillMemory(ctx, selected);
  for (const memory of memories)
    if (memory.row !== state.selected)
      strokeMemory(ctx, memory, theme.ink, 1, Math.max(0.12, 0.8 / Math.sqrt(memories.length + 4)));
  if (selected) {
    strokeMemory(ctx, selected, theme.ink, 1.5, 1);
    drawCapacity(ctx, selected);
    drawPeak(ctx, selected);
  }
  drawCrosshair(ctx, 0, height - BOTTOM);
  ctx.restore();
}

function drawByteAxis(ctx) {
  const step = niceStep(memoryLimit(), Math.max(2, geometry.memoryHeight / 42));
  ctx.font = font(11);
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (let value = 0; byteY(value) > 7; value += step) {
    const y = Math.round(byteY(value));
    ctx.fillStyle = value === 0 ? theme.line : theme.grid;
    ctx.fillRect(geometry.left, y, geometry.width - geometry.left, 1);
    ctx.fillStyle = theme.muted;
    ctx.fillText(value === 0 ? "0" : size(value), geometry.left - 8, Math.min(y, geometry.memoryHeight - 7));
  }
}

// The steps in view, the highest or lowest value of those within a few pixels. Returns the first and last x.
function traceMemory(ctx, { times, bytes }, pick) {
  let k = Math.max(0, firstAtLeast(times, state.from) - 1);
  const start = xOf(times[k]);
  let y = byteY(bytes[k++]);
  ctx.moveTo(start, y);
  while (k < times.length && times[k] <= state.to) {
    const x = xOf(times[k]);
    ctx.lineTo(x, y);
    let value = bytes[k];
    let last = k++;
    while (k < times.length && xOf(times[k]) < x + MERGED) {
      value = pick(value, bytes[k]);
      last = k++;
    }
    y = byteY(bytes[last]);
    if (bytes[last] !== value) {
      ctx.lineTo(x, byteY(value));
      ctx.lineTo(xOf(times[last]), byteY(value));
    }
    ctx.lineTo(xOf(times[last]), y);
  }
  const end = Math.min(xOf(total), geometry.width + 4);
  ctx.lineTo(end, y);
  return [start, end];
}

function strokeMemory(ctx, memory, colour, width, alpha) {
  if (!memory.times.length) return;
  ctx.beginPath();
  traceMemory(ctx, memory, Math.max);
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.globalAlpha = alpha;
  ctx.stroke();
  ctx.globalAlpha = 1;
}

// The sums of the parts up to each of them, from below.
function stackOf(memory) {
  const sums = new Float64Array(memory.times.length);
  memory.stack ??= memory.changes.map(([name, at, bytes]) => {
    let next = 0;
    let held = 0;
    for (let k = 0; k < sums.length; k++) {
      if (at[next] === k) held = bytes[next++];
      sums[k] += held;
    }
    return { name, times: memory.times, bytes: sums.slice() };
  });
  return memory.stack;
}

// The stack of the parts below the highest values, and once more below the lowest: what lies between is lighter.
function fillMemory(ctx, memory) {
  if (!memory.times.length) return;
  const stack = [...stackOf(memory)].reverse();
  for (const { name, times, bytes } of stack) fillBelow(ctx, { times, bytes }, Math.max, theme.parts[name]);
  ctx.globalAlpha = BETWEEN;
  fillBelow(ctx, memory, Math.max, theme.panel);
  ctx.globalAlpha = 1;
  for (const { name, times, bytes } of stack) fillBelow(ctx, { times, bytes }, Math.min, theme.parts[name]);
}

function fillBelow(ctx, curve, pick, colour) {
  ctx.fillStyle = colour;
  ctx.beginPath();
  const [start, end] = traceMemory(ctx, curve, pick);
  ctx.lineTo(end, byteY(0));
  ctx.lineTo(start, byteY(0));
  ctx.fill();
}

function drawCapacity(ctx, { capacity }) {
  if (capacity === null || capacity > memoryLimit()) return;
  const y = Math.round(byteY(capacity)) + 0.5;
  ctx.strokeStyle = ctx.fillStyle = theme.ink;
  ctx.lineWidth = 1;
  ctx.setLineDash([6, 4]);
  ctx.beginPath();
  ctx.moveTo(geometry.left, y);
  ctx.lineTo(geometry.width, y);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.font = font(11, 600);
  ctx.textAlign = "right";
  ctx.textBaseline = "alphabetic";
  ctx.fillText(`capacity ${size(capacity)}`, geometry.right, y - 5);
}

const peakPoint = (memory) => ({ x: xOf(memory.peakTime), y: byteY(memory.peakBytes) });

function drawPeak(ctx, memory) {
  const { x, y } = peakPoint(memory);
  if (x < geometry.left || x > geometry.width) return;
  ctx.beginPath();
  ctx.arc(x, y, 4.5, 0, 7);
  ctx.fillStyle = theme.ink;
  ctx.strokeStyle = theme.panel;
  ctx.lineWidth = 2;
  ctx.fill();
  ctx.stroke();
  const text = `peak ${size(memory.peakBytes)}`;
  ctx.font = font(11, 600);
  const half = widthOf(ctx, text) / 2;
  const middle = Math.max(geometry.left + half + 6, Math.min(geometry.right - half, x));
  ctx.textAlign = "center";
  ctx.textBaseline = "alphabetic";
  ctx.strokeStyle = theme.panel;
  ctx.lineWidth = 4;
  ctx.strokeText(text, middle, y - 9);
  ctx.fillText(text, middle, y - 9);
}

// The bytes of a row at a time; before its first value there is none.
function bytesAt({ times, bytes }, time) {
  let k = firstAtLeast(times, time);
  if (k === times.length || times[k] > time) k--;
  return k < 0 ? 0 : bytes[k];
}

// The parts of a row's memory at a time, with their bytes.
function partsAt(memory, time) {
  let below = 0;
  return stackOf(memory).flatMap(({ name, ...sums }) => {
    const up = bytesAt(sums, time);
    const bytes = up - below;
    below = up;
    return bytes > 0 ? [[name, bytes]] : [];
  });
}
