// events.js: draws one event with its exposed communication and label, and frames around the hovered one and its like.

const ROUNDED = 10; // pixels of an event with round corners
const DIMMED = 0.14; // how much is seen of what is not marked
let lit = null; // by the number of a set of lines: whether its events are marked; null marks all

const isLit = (e) => lit === null || lit[events.lines[e]];

function drawEvent(ctx, e, x, end, y, height, isLabelled) {
  const from = Math.max(Math.round(x), geometry.left - 20);
  const to = Math.max(from + 1, Math.min(Math.round(end), geometry.width + 20));
  const width = to - from - (to - from > 4 ? 1 : 0);
  const kind = events.kind[e];
  ctx.globalAlpha = isLit(e) ? 1 : DIMMED;
  ctx.fillStyle = theme.kinds[kind];
  fillBox(ctx, from, y, width, height, 3, width >= ROUNDED);
  let solid = to;
  if (events.communication[e] > 0 && width > 2) {
    const portion = events.communication[e] / (events.end[e] - events.start[e]);
    solid = Math.round(Math.max(from, end - portion * (end - x)));
    ctx.fillStyle = theme.exposed;
    if (solid < from + width)
      fillBox(ctx, solid, y, from + width - solid, height, solid > from ? [0, 3, 3, 0] : 3, width >= ROUNDED);
  }
  if (!isLabelled || width < 9) return;
  const start = Math.max(from, geometry.left);
  const stop = Math.min(from + width, geometry.right + MARGIN);
  const clear = Math.min(solid, stop) - start; // of what is exposed
  drawLabel(ctx, e, start, clear >= 20 || clear > (stop - start) / 2 ? start + clear : stop, y, height, solid <= from);
}

function fillBox(ctx, x, y, width, height, radius, isRound) {
  if (!isRound || height < 8) return ctx.fillRect(x, y, width, height);
  ctx.beginPath();
  ctx.roundRect(x, y, width, height, radius);
  ctx.fill();
}

const BELOW = [11, 9.5, 8]; // sizes of the number below the letter, and of a number alone

// "F3", the number below the letter where that is narrow, the number alone, or nothing; and what runs, if there is room.
function drawLabel(ctx, e, left, right, y, height, isExposed) {
  const letter = letterOf(e);
  const numbers = [fullLabels[events.coordinate[e]], shortLabels[events.coordinate[e]]];
  const room = right - left - 3;
  const tight = right - left - 1; // for small text
  const middle = (left + right) / 2;
  const centre = y + height / 2 + 0.5;
  ctx.fillStyle = isExposed ? theme.exposedInk : theme.inks[events.kind[e]];
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const line = (texts, px, weight, at) => {
    ctx.font = font(px, weight);
    const text = texts.find((candidate) => candidate && widthOf(ctx, candidate) <= (px < 10 ? tight : room));
    if (text) ctx.fillText(text, middle, at);
    return Boolean(text);
  };
  const small = (texts, at) => BELOW.some((size) => size <= height && line(texts, size, 500, at));
  const name = height >= 38 && room >= 40 ? nameThatFits(ctx, e, room - 6) : "";
  const px = Math.min(13, height - 1);
  const whole = numbers.map((number) => letter + number);
  if (line(whole, px, 600, centre - (name ? 7 : 0))) return name && line([name], 10.5, 400, centre + 9);
  ctx.font = font(12, 600);
  const hasLetter = height >= 34 && letter && widthOf(ctx, letter) <= room;
  if (hasLetter && small(numbers, centre + 7)) return line([letter], 12, 600, centre - 7);
  if (!small(whole, centre)) small(numbers, centre);
}

// At least half of the name, or nothing.
function nameThatFits(ctx, e, room) {
  ctx.font = font(10.5);
  const name = nameOf(e);
  const text = shortened(ctx, name, room);
  return text === name || text.length >= Math.max(9, name.length / 2) ? text : "";
}

// A frame around the hovered event, and thin ones around those of the same coordinate.
function drawHovered(ctx) {
  if (state.hovered < 0) return;
  const coordinate = events.coordinate[state.hovered];
  ctx.strokeStyle = theme.ink;
  if (data.events.coordinates[coordinate].length) {
    ctx.lineWidth = 1;
    ctx.globalAlpha = 0.75;
    for (const e of ofCoordinate[coordinate]) {
      const box = eventBox(e);
      if (box.x > geometry.width || box.x + box.width < geometry.left || box.width < 3) continue;
      ctx.strokeRect(Math.round(box.x) + 0.5, box.y + 0.5, Math.max(1, Math.round(box.width) - 2), box.height - 1);
    }
    ctx.globalAlpha = 1;
  }
  const { x, y, width, height } = eventBox(state.hovered);
  const from = Math.max(Math.round(x), geometry.left - 10);
  const to = Math.min(Math.round(x + width), geometry.width + 10);
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.roundRect(from - 1, y - 1, Math.max(2, to - from + 1), height + 2, 4);
  ctx.stroke();
}

const ofCoordinate = data.events.coordinates.map(() => []);
for (let e = 0; e < events.count; e++) ofCoordinate[events.coordinate[e]].push(e);
