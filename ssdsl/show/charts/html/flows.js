// flows.js: arrows from where a transfer is sent to where it arrives: of the hovered event, or of all when few are visible.

const MOST_ARROWS = 40;
const flowsOf = new Map(); // an event's, by their numbers
flows.source.forEach((source, at) => {
  for (const e of new Set([source, flows.target[at]])) {
    if (!flowsOf.has(e)) flowsOf.set(e, []);
    flowsOf.get(e).push(at);
  }
});

function drawFlows(ctx) {
  const strong = new Set(flowsOf.get(state.hovered) ?? []);
  const faint = isZoomedIn() ? visibleFlows() : [];
  ctx.lineWidth = 1.25;
  for (const at of faint) if (!strong.has(at)) drawArrow(ctx, at, theme.ink, 0.55);
  for (const at of hoveredFlows()) if (!strong.has(at)) drawArrow(ctx, at, theme.ink, 0.5);
  ctx.lineWidth = 2;
  for (const at of strong) drawArrow(ctx, at, theme.ink, 1);
  ctx.globalAlpha = 1;
}

const isZoomedIn = () => state.to - state.from < total * 0.75;

// Those with an end in view; none if they are too many to follow.
function visibleFlows() {
  const found = [];
  for (let at = 0; at < flows.source.length; at++) {
    const source = flows.source[at];
    const target = flows.target[at];
    if (events.end[target] < state.from || events.start[source] > state.to) continue;
    if (found.push(at) > MOST_ARROWS) return [];
  }
  return found;
}

// The way of the hovered event's micro-batch through the rows.
function hoveredFlows() {
  if (state.hovered < 0 || !coordinateOf(state.hovered).length) return [];
  const found = ofCoordinate[events.coordinate[state.hovered]].flatMap((e) => flowsOf.get(e) ?? []);
  return found.length > 4 * MOST_ARROWS ? [] : new Set(found);
}

// From the facing edges of the two; late in the source and early in the target, or the other way where they overlap in time.
function drawArrow(ctx, at, colour, alpha) {
  const from = eventBox(flows.source[at]);
  const to = eventBox(flows.target[at]);
  const isAfter = to.x >= from.x + from.width - 0.5;
  const x0 = from.x + from.width * (isAfter ? 0.75 : 0.3);
  const x1 = to.x + to.width * (isAfter ? 0.25 : 0.7);
  const down = to.y > from.y ? 1 : -1;
  const y0 = down > 0 ? from.y + from.height : from.y;
  const y1 = down > 0 ? to.y : to.y + to.height;
  const bend = Math.max(6, Math.abs(y1 - y0) * 0.45) * down;
  const width = ctx.lineWidth;
  ctx.globalAlpha = alpha;
  for (const [style, extra] of [
    [theme.panel, 2.5],
    [colour, 0],
  ]) {
    ctx.lineWidth = width + extra;
    ctx.strokeStyle = style;
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1 - 5 * down);
    ctx.stroke();
  }
  ctx.lineWidth = width;
  ctx.fillStyle = colour;
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x1 - 3.5, y1 - 7 * down);
  ctx.lineTo(x1 + 3.5, y1 - 7 * down);
  ctx.fill();
}
