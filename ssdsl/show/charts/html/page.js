// page.js: puts the page together, draws a frame when something has changed, and shows tests what they need.

const stage = document.getElementById("stage");
const contexts = { tracks: canvases.tracks.getContext("2d"), memory: canvases.memory.getContext("2d") };
const TALLEST = 124; // pixels of a row
const LEAST_ROW = 34;
const frameTimes = []; // of the last frames, in milliseconds
let asked = 0;

function request() {
  asked ||= requestAnimationFrame(draw);
}

function draw() {
  const begun = performance.now();
  asked = 0;
  for (const context of Object.values(contexts)) context.setTransform(geometry.dpr, 0, 0, geometry.dpr, 0, 0);
  drawTracks(contexts.tracks);
  if (memories.length) drawMemory(contexts.memory);
  writeView();
  frameTimes.push(performance.now() - begun);
  if (frameTimes.length > 1000) frameTimes.shift();
}

// The tracks get what they need up to two thirds, the memory what is left.
function layout() {
  const used = ["legend", "strip"].reduce((sum, id) => sum + document.getElementById(id).offsetHeight, 0);
  const room = Math.max(200, stage.clientHeight - used);
  const most = memories.length ? room - Math.max(120, room * 0.32) : room;
  geometry.dpr = window.devicePixelRatio || 1;
  geometry.width = stage.clientWidth;
  geometry.right = geometry.width - MARGIN;
  geometry.rowHeight = Math.max(LEAST_ROW, Math.min(TALLEST, Math.floor((most - AXIS) / Math.max(1, rows.length))));
  geometry.tracksHeight = Math.floor(Math.min(most, AXIS + rows.length * geometry.rowHeight));
  if (!memories.length) geometry.tracksHeight = Math.floor(room);
  geometry.memoryHeight = memories.length ? Math.floor(room - geometry.tracksHeight) : 0;
  resize(canvases.tracks, geometry.tracksHeight);
  resize(canvases.memory, geometry.memoryHeight);
  scrollTo(state.scroll);
  draw();
}

function resize(canvas, height) {
  canvas.width = Math.round(geometry.width * geometry.dpr);
  canvas.height = Math.round(height * geometry.dpr);
  canvas.style.height = `${height}px`;
}

// ---- what is hovered -------------------------------------------------------------------------------------------

function setHovered(e) {
  if (e === state.hovered) return;
  state.hovered = e;
  markLines();
  request();
}

function setLine(line) {
  if (line === state.line) return;
  state.line = line;
  markLines();
  markEvents();
  request();
}

function setPinned(line) {
  state.pinned = line;
  markLines();
  markEvents();
  request();
}

// ---- for tests -------------------------------------------------------------------------------------------------

const marked = (e) => lit !== null && isLit(e);
window.ssdslTimeline = {
  frameTimes,
  eventCount: events.count,
  total,
  zoom: setView,
  view: () => ({ from: state.from, to: state.to }),
  draw: () => (draw(), frameTimes.at(-1)),
  hover(e) {
    setHovered(e);
    if (e < 0) return hideTooltip();
    const box = this.box(e);
    describeEvent(e, box.x + box.width / 2, box.y + box.height / 2);
  },
  hoverLine: setLine,
  select,
  selected: () => state.selected,
  hovered: () => state.hovered,
  memoryPoint: (time, bytes) => ({ x: xOf(time), y: byteY(bytes) }),
  parts: (row, time) => partsAt(memoryOf.get(row), time),
  markedLines: () => lineElements.flatMap((line, number) => (line.classList.contains("marked") ? [number] : [])),
  markedEvents: () => Array.from({ length: events.count }, (_, e) => e).filter(marked),
  // Where an event is drawn, in pixels of the window.
  box(e) {
    const { x, y, width, height } = eventBox(e);
    const canvas = canvases.tracks.getBoundingClientRect();
    return { x: canvas.left + x, y: canvas.top + y, width, height };
  },
};

readTheme();
writeHeader();
writeLegend();
writePlan();
writeTables();
writeStrip();
layout();
new ResizeObserver(layout).observe(stage);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (readTheme(), request()));
