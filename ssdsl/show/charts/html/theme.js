// theme.js: the colours of colours.css for the canvases, and text that fits.

const SANS = '"Inter", "Segoe UI", "Helvetica Neue", Arial, system-ui, sans-serif';
const PARTS = 7; // colours of the parts of memory
let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["panel", "ink", "muted", "faint", "line", "grid", "lane", "accent", "mark", "crosshair", "danger"];
  theme = Object.fromEntries(names.map((name) => [name, colour(name)]));
  theme.kinds = KINDS.map((kind) => colour(kind));
  theme.inks = KINDS.map((kind) => colour(`${kind}-ink`));
  theme.parts = Array.from({ length: PARTS }, (_, at) => colour(`part-${at}`));
  theme.hatchInk = colour("hatch-ink");
  theme.hatch = hatch(colour("hatch"), colour("hatch-ground"));
}

// Diagonal lines on a shade, which darken what is below them.
function hatch(stroke, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ctx = tile.getContext("2d");
  ctx.fillStyle = ground;
  ctx.fillRect(0, 0, 6, 6);
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 1.4;
  ctx.beginPath();
  for (const at of [-6, 0, 6]) {
    ctx.moveTo(at - 1, 7);
    ctx.lineTo(at + 7, -1);
  }
  ctx.stroke();
  return ctx.createPattern(tile, "repeat");
}

const font = (px, weight = 400) => `${weight} ${px}px ${SANS}`;

const widths = new Map(); // by font and text
function widthOf(ctx, text) {
  const key = `${ctx.font}|${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    width = ctx.measureText(text).width;
    if (widths.size > 50000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

function shortened(ctx, text, most) {
  if (widthOf(ctx, text) <= most) return text;
  let length = Math.floor((text.length * most) / widthOf(ctx, text));
  while (length > 0 && ctx.measureText(`${text.slice(0, length)}…`).width > most) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}
