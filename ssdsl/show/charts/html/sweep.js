// sweep.js: the settings of a sweep as points, memory to the right and time upwards, and as rows; each marks the other.

const data = JSON.parse(document.getElementById("sweep").textContent);
const settings = data.settings;
const drawn = settings.filter((s) => s.step !== null);
const state = { from: 0, to: 1 }; // what scale.js asks for; nothing is zoomed here
const PAD = { left: 70, right: 26, top: 18, bottom: 44 };
const WIDE = 12; // a range wider than this is drawn in powers
const plot = document.getElementById("plot");
const rowElements = [];
let pointElements = [];

function shape(name, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

const words = (setting) => data.params.map((name, at) => `${name}=${setting.params[at]}`).join(" ");
const classOf = (setting) =>
  setting.refused ? "refused" : setting.over ? "over" : setting.best ? "best" : "fits";

// ---- scales ----------------------------------------------------------------------------------------------------

// From values to pixels; `ticks` are the round values between.
function scaleOf(values, from, to) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const isLog = least > 0 && most / least > WIDE;
  const map = isLog ? Math.log : (value) => value;
  const edge = (map(most) - map(least)) * 0.08 || Math.abs(map(most)) * 0.1 || 1;
  const [low, high] = [isLog ? map(least) - edge : Math.max(0, map(least) - edge), map(most) + edge];
  const at = (value) => from + ((map(value) - low) / (high - low)) * (to - from);
  const ticks = isLog
    ? powers(Math.exp(low), Math.exp(high))
    : evenly(low, high, Math.max(2, Math.round(Math.abs(to - from) / 90)));
  return { at, ticks };
}

function evenly(low, high, most) {
  const step = niceStep(high - low, most);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) found.push(n * step);
  return found;
}

function powers(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const n of [1, 2, 5]) {
      const value = n * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  return found;
}

// ---- the plot --------------------------------------------------------------------------------------------------

function drawPlot() {
  const { clientWidth: width, clientHeight: height } = plot;
  plot.replaceChildren();
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  pointElements = [];
  if (!drawn.length) {
    plot.append(shape("text", { x: 16, y: 32, class: "name" }, "the compiler refuses every setting"));
    return;
  }
  const [right, bottom] = [width - PAD.right, height - PAD.bottom];
  const memory = drawn.map((s) => s.peak);
  const x = scaleOf(data.capacity ? [...memory, data.capacity] : memory, PAD.left, right);
  const y = scaleOf(
    drawn.map((s) => s.step),
    bottom,
    PAD.top,
  );
  drawAxes(x, y, right, bottom);
  if (data.capacity) drawCapacity(x.at(data.capacity), right, bottom);
  drawFront(x, y);
  const points = drawn.map((setting) => ({ setting, x: x.at(setting.peak), y: y.at(setting.step) }));
  points.forEach((point) => plot.append(pointElement(point)));
  drawLabels(points, right);
}

// The best first; a label that finds no free place beside its point is left out: pointing at it tells.
function drawLabels(points, right) {
  const taken = points.map(({ x, y }) => ({ left: x - 7, right: x + 7, top: y - 7, bottom: y + 7 }));
  const sorted = [...points].sort((a, b) => b.setting.best - a.setting.best || a.setting.step - b.setting.step);
  for (const { setting, x, y } of sorted) {
    const [text, width] = [words(setting), 6.4 * words(setting).length];
    for (const [dx, dy, anchor] of [
      [12, 4, "start"],
      [-12, 4, "end"],
      [0, -11, "middle"],
      [0, 19, "middle"],
    ]) {
      const left = x + dx - { start: 0, end: width, middle: width / 2 }[anchor];
      const box = { left, right: left + width, top: y + dy - 10, bottom: y + dy + 3 };
      const isFree = taken.every(
        (o) => o.right < box.left || o.left > box.right || o.bottom < box.top || o.top > box.bottom,
      );
      if (!isFree || box.left < PAD.left || box.right > right) continue;
      taken.push(box);
      plot.append(shape("text", { class: "label", x: x + dx, y: y + dy, "text-anchor": anchor }, text));
      break;
    }
  }
}

function drawAxes(x, y, right, bottom) {
  for (const tick of x.ticks) {
    const at = x.at(tick);
    plot.append(shape("line", { class: "grid", x1: at, x2: at, y1: PAD.top, y2: bottom }));
    plot.append(shape("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle" }, size(tick)));
  }
  for (const tick of y.ticks) {
    const at = y.at(tick);
    plot.append(shape("line", { class: "grid", x1: PAD.left, x2: right, y1: at, y2: at }));
    plot.append(shape("text", { class: "tick", x: PAD.left - 8, y: at + 4, "text-anchor": "end" }, seconds(tick)));
  }
  plot.append(shape("path", { class: "axis", fill: "none", d: `M${PAD.left} ${PAD.top}V${bottom}H${right}` }));
  const middle = (PAD.left + right) / 2;
  plot.append(
    shape("text", { class: "name", x: middle, y: bottom + 34, "text-anchor": "middle" }, "peak memory of the fullest device"),
    shape("text", { class: "name", x: PAD.left + 8, y: PAD.top + 4 }, "step time"),
  );
}

function drawCapacity(at, right, bottom) {
  const attributes = { class: "beyond", x: at, y: PAD.top, width: Math.max(0, right - at), height: bottom - PAD.top };
  plot.append(shape("rect", attributes), shape("line", { class: "capacity", x1: at, x2: at, y1: PAD.top, y2: bottom }));
  const label = { class: "tick", x: at - 6, y: bottom - 8, "text-anchor": "end" };
  plot.append(shape("text", label, `capacity ${size(data.capacity)}`));
}

// Settings that no other beats in both time and memory, of those that fit.
function drawFront(x, y) {
  const fit = drawn.filter((s) => !s.over).sort((a, b) => a.peak - b.peak || a.step - b.step);
  let least = Infinity;
  const front = fit.filter((s) => s.step < least && ((least = s.step), true));
  const path = front.map((s, at) => `${at ? "L" : "M"}${x.at(s.peak)} ${y.at(s.step)}`).join("");
  if (front.length > 1) plot.append(shape("path", { class: "front", d: path }));
}

function pointElement({ setting, x, y }) {
  const group = shape("g", { class: `point ${classOf(setting)}`, tabindex: 0 });
  group.append(
    shape("title", {}, `${words(setting)}: ${seconds(setting.step)}, ${size(setting.peak)}. ${setting.note}`),
    shape("circle", { class: "ring", cx: x, cy: y, r: 9 }),
    shape("circle", { class: "shape", cx: x, cy: y, r: 5.5 }),
  );
  group.addEventListener("pointerenter", () => mark(setting));
  group.addEventListener("focus", () => mark(setting));
  group.addEventListener("pointerleave", () => mark(null));
  group.addEventListener("click", () => rowElements[settings.indexOf(setting)].scrollIntoView({ block: "nearest" }));
  pointElements[settings.indexOf(setting)] = group;
  return group;
}

function mark(setting) {
  const chosen = settings.indexOf(setting);
  for (const elements of [rowElements, pointElements])
    elements.forEach((found, at) => found.classList.toggle("marked", at === chosen));
}

// ---- words -----------------------------------------------------------------------------------------------------

function writeHeader() {
  document.getElementById("title").textContent = data.title;
  const rest = data.others.map(([name, value]) => `${name}=${value}`).join(" ");
  const parts = [counted(settings.length, "setting"), rest && `with ${rest}`];
  document.getElementById("subtitle").textContent = parts.filter(Boolean).join(" · ");
  const meanings = { best: "best: the shortest step that fits", fits: "fits", over: "over its memory" };
  const legend = Object.entries(meanings).filter(([kind]) => drawn.some((s) => classOf(s) === kind));
  document.getElementById("legend").append(
    ...legend.map(([kind, text]) => {
      const icon = shape("svg", { viewBox: "0 0 14 14" });
      const group = shape("g", { class: `point ${kind}` });
      group.append(shape("circle", { class: "shape", cx: 7, cy: 7, r: 5 }));
      icon.append(group);
      return element("li", "", icon, text);
    }),
  );
}

function writeTable() {
  const names = [...data.params, "step", "bubble", "exposed", "peak memory", "of capacity", "traffic", "devices", "device-s", "note"];
  const head = element("thead", "", element("tr", "", ...names.map((name) => element("th", "", name))));
  const body = element("tbody", "", ...settings.map(rowElement));
  document.getElementById("table").append(element("table", "", head, body));
}

function rowElement(setting) {
  const known = (text, value) => (value === null ? "" : text(value));
  const cells = [
    known(seconds, setting.step),
    known(share, setting.bubble),
    known(share, setting.exposed),
    known(size, setting.peak),
    known(share, setting.filled),
    known(size, setting.traffic),
    known(String, setting.devices),
    known(seconds, setting.device_s),
    setting.note,
  ];
  const row = element(
    "tr",
    classOf(setting),
    ...setting.params.map((value) => element("td", "param", String(value))),
    ...cells.map((text) => element("td", "", text)),
  );
  row.addEventListener("pointerenter", () => mark(setting));
  row.addEventListener("pointerleave", () => mark(null));
  rowElements.push(row);
  return row;
}

writeHeader();
writeTable();
drawPlot();
new ResizeObserver(drawPlot).observe(plot);
