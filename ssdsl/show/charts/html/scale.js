// scale.js: between times and pixels, and numbers as people read them.

const GUTTER = 176; // the names of the rows
const AXIS = 32; // the height of the time axis
const MARGIN = 14; // right of the end of the step

// Sizes in pixels, set by `layout` in page.js.
const geometry = { width: 0, left: GUTTER, right: 0, tracksHeight: 0, memoryHeight: 0, rowHeight: 0, dpr: 1 };

const xOf = (time) =>
  geometry.left + ((time - state.from) / (state.to - state.from)) * (geometry.right - geometry.left);
const timeOf = (x) => state.from + ((x - geometry.left) / (geometry.right - geometry.left)) * (state.to - state.from);

const UNITS = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
  [1e-9, "ns"],
];

// The round steps 1, 2 and 5: the least that makes at most `most` steps of `span`.
function niceStep(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough * 0.9999);
}

function timeTicks() {
  const step = niceStep(state.to - state.from, (geometry.right - geometry.left) / 96);
  const [unit, name] = UNITS.find(([u]) => state.to >= u * 1.5) ?? UNITS[3];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  const ticks = [];
  for (let n = Math.ceil(state.from / step - 1e-9); n * step <= state.to * (1 + 1e-9); n++) {
    const label = n === 0 ? "0" : `${((n * step) / unit).toFixed(decimals)} ${name}`;
    ticks.push({ x: xOf(n * step), label });
  }
  return ticks;
}

const digits = (value) => (value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

function seconds(value) {
  if (value === 0) return "0 s";
  const [unit, name] = UNITS.find(([u]) => Math.abs(value) >= u * 0.9995) ?? UNITS[3];
  return `${digits(value / unit)} ${name}`;
}

// A moment, with as many digits as tell apart this many parts of the view.
function moment(value, parts) {
  const [unit, name] = UNITS.find(([u]) => state.to >= u * 1.5) ?? UNITS[3];
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10((state.to - state.from) / parts / unit))));
  return `${(value / unit).toFixed(decimals)} ${name}`;
}

function size(value) {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 999.5 && power < 4) ((value /= 1000), power++);
  return `${digits(value)} ${names[power]}`;
}

const share = (value) => `${(100 * value).toFixed(1)} %`;
const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
