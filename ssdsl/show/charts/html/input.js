// input.js: pointer, wheel and keys.

const canvases = { tracks: document.getElementById("tracks"), memory: document.getElementById("memory") };
const LEAST_SPAN = total / 1e6;
const SLOP = 4; // pixels that a click may move
let drag = null;

// ---- the view --------------------------------------------------------------------------------------------------

function setView(from, to) {
  const span_ = Math.min(total, Math.max(LEAST_SPAN, to - from));
  const start = Math.max(0, Math.min(total - span_, from + (to - from - span_) / 2));
  state.from = start;
  state.to = start + span_;
  request();
}

function zoomAbout(time, factor) {
  const span_ = Math.min(total, Math.max(LEAST_SPAN, (state.to - state.from) * factor));
  const portion = (time - state.from) / (state.to - state.from);
  setView(time - portion * span_, time + (1 - portion) * span_);
}

function scrollTo(y) {
  const most = Math.max(0, rows.length * geometry.rowHeight - (geometry.tracksHeight - AXIS));
  state.scroll = Math.max(0, Math.min(most, y));
  request();
}

// Keys and double clicks move there in a moment, for the eye to follow.
function glide(from, to) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return setView(from, to);
  const [from0, to0, begun] = [state.from, state.to, performance.now()];
  const step = (now) => {
    const done = Math.max(0, Math.min(1, (now - begun) / 180));
    const eased = 1 - (1 - done) ** 3;
    setView(from0 + (from - from0) * eased, to0 + (to - to0) * eased);
    if (done < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function select(row) {
  if (row < 0 || row >= rows.length) return;
  state.selected = row;
  const top = row * geometry.rowHeight;
  const inside = geometry.tracksHeight - AXIS;
  if (top < state.scroll) scrollTo(top);
  else if (top + geometry.rowHeight > state.scroll + inside) scrollTo(top + geometry.rowHeight - inside);
  writeStrip();
  request();
}

// ---- pointer ---------------------------------------------------------------------------------------------------

function at(event, canvas) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top, canvas };
}

function onMove(event, canvas) {
  const point = at(event, canvas);
  if (drag) {
    const moved = point.x - drag.x;
    if (!drag.isMoving && Math.hypot(moved, point.y - drag.y) < SLOP) return;
    drag.isMoving = true;
    canvas.classList.add("dragging");
    const shift = (moved / (geometry.right - geometry.left)) * (drag.to - drag.from);
    setView(drag.from - shift, drag.to - shift);
    if (canvas === canvases.tracks) scrollTo(drag.scroll - (point.y - drag.y));
    hideTooltip();
    return;
  }
  state.pointer = point;
  point.clientX = event.clientX;
  point.clientY = event.clientY;
  lookAt(point);
  request();
}

// Hover what is below the point.
function lookAt({ x, y, canvas, clientX, clientY }) {
  const e = canvas === canvases.tracks ? eventBelow(x, y) : -1;
  setHovered(e);
  const row =
    canvas === canvases.tracks && x < GUTTER - 8 ? Math.floor((y - AXIS + state.scroll) / geometry.rowHeight) : -1;
  if (e >= 0) describeEvent(e, clientX, clientY);
  else if (y > AXIS && row >= 0 && row < rows.length) describeRow(row, clientX, clientY);
  else if (canvas === canvases.memory && x >= geometry.left && memories.length)
    describeMemory({ x, y }, clientX, clientY);
  else hideTooltip();
  canvas.style.cursor = e >= 0 || row >= 0 ? "pointer" : "";
}

function onLeave() {
  if (drag) return;
  state.pointer = null;
  setHovered(-1);
  hideTooltip();
  request();
}

function onWheel(event, canvas) {
  event.preventDefault();
  const point = at(event, canvas);
  const unit = event.deltaMode === 1 ? 16 : 1;
  const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
  const perPixel = (state.to - state.from) / (geometry.right - geometry.left);
  if (event.shiftKey || Math.abs(dx) > Math.abs(dy))
    setView(state.from + (dx || dy) * perPixel, state.to + (dx || dy) * perPixel);
  else if (canvas === canvases.tracks && point.x < geometry.left) scrollTo(state.scroll + dy);
  else
    zoomAbout(
      timeOf(Math.max(geometry.left, Math.min(geometry.right, point.x))),
      Math.exp(dy * (event.ctrlKey ? 0.01 : 0.0018)),
    );
  if (state.pointer) lookAt(state.pointer);
}

for (const canvas of Object.values(canvases)) {
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { ...at(event, canvas), from: state.from, to: state.to, scroll: state.scroll, isMoving: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => onMove(event, canvas));
  canvas.addEventListener("pointerup", (event) => {
    const { x, y } = at(event, canvas);
    if (drag && !drag.isMoving && canvas === canvases.tracks && y > AXIS)
      select(Math.floor((y - AXIS + state.scroll) / geometry.rowHeight));
    drag = null;
    canvas.classList.remove("dragging");
    if (x >= 0) onMove(event, canvas);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", onLeave);
  canvas.addEventListener("wheel", (event) => onWheel(event, canvas), { passive: false });
  canvas.addEventListener("dblclick", () => glide(0, total));
}

// ---- the plan --------------------------------------------------------------------------------------------------

const lineBelow = (event) => Number(event.target.closest?.("[data-line]")?.dataset.line ?? 0);
for (const list of ["lines", "tables"].map((id) => document.getElementById(id))) {
  list.addEventListener("pointerover", (event) => setLine(lineBelow(event)));
  list.addEventListener("pointerleave", () => setLine(0));
  list.addEventListener("click", (event) => {
    const line = lineBelow(event);
    setPinned(line === state.pinned || !eventsOfLine.get(line) ? 0 : line);
  });
}

// ---- keys ------------------------------------------------------------------------------------------------------

const pan = (portion) =>
  glide(state.from + portion * (state.to - state.from), state.to + portion * (state.to - state.from));
const zoomKey = (factor) => {
  const middle = (state.from + state.to) / 2;
  const half = Math.min(total, (state.to - state.from) * factor) / 2;
  glide(middle - half, middle + half);
};
const KEYS = {
  ArrowLeft: () => pan(-0.2),
  ArrowRight: () => pan(0.2),
  ArrowUp: () => select(state.selected - 1),
  ArrowDown: () => select(state.selected + 1),
  "+": () => zoomKey(0.5),
  "=": () => zoomKey(0.5),
  "-": () => zoomKey(2),
  0: () => glide(0, total),
  Escape: () => setPinned(0),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
