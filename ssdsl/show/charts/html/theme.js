// theme.js: the colours of colours.css for the canvases, and text that fits.

const SANS = '"Inter", "Segoe UI", "Helvetica Neue", Arial, system-ui, sans-serif';
let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["panel", "ink", "muted", "faint", "line", "grid", "lane", "mark", "crosshair"];
  theme = Object.fromEntries(names.map((name) => [name, colour(name)]));
  theme.kinds = KINDS.map((kind) => colour(kind));
  theme.inks = KINDS.map((kind) => colour(`${kind}-ink`));
  theme.parts = Object.fromEntries(partNames.map((name) => [name, colour(`part-${name}`)]));
  theme.exposed = colour("exposed");
  theme.exposedInk = colour("exposed-ink");
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
