// data.js: the timeline as it was written, its columns as typed arrays.

const data = JSON.parse(document.getElementById("timeline").textContent);

const KINDS = data.kinds;
const LETTERS = { fwd: "F", bwd: "B", dgrad: "B", wgrad: "W", reduce: "R", optimizer: "O", gather: "G", again: "A" };
const WORDS = {
  fwd: "forward",
  bwd: "backward",
  dgrad: "backward, of inputs",
  wgrad: "backward, of weights",
  transfer: "transfer",
  reduce: "reduction of gradients",
  optimizer: "optimizer",
  exposed: "exposed communication",
  gather: "gathering of weights",
  again: "forward again",
};
const COMPUTE = 0;

const rows = data.rows;
const events = {
  count: data.events.row.length,
  row: Int32Array.from(data.events.row),
  stream: Uint8Array.from(data.events.stream),
  kind: Uint8Array.from(data.events.kind),
  start: Float64Array.from(data.events.start),
  end: Float64Array.from(data.events.end),
  name: Int32Array.from(data.events.name),
  coordinate: Int32Array.from(data.events.coordinate),
  communication: Float64Array.from(data.events.communication),
  bytes: Float64Array.from(data.events.bytes),
  lines: Int32Array.from(data.events.lines),
  fromPlan: Uint8Array.from(data.events.fromPlan),
};
const flows = data.flows;
const memories = data.memory;
const partNames = [...new Set(memories.flatMap(({ parts, changes }) => [...parts, ...changes].map(([name]) => name)))];
const planLines = data.text.replace(/\r?\n$/, "").split(/\r?\n/);

const letterOf = (e) => LETTERS[KINDS[events.kind[e]]] ?? "";
const nameOf = (e) => data.events.names[events.name[e]];
const coordinateOf = (e) => data.events.coordinates[events.coordinate[e]];
const linesOf = (e) => data.events.lineSets[events.lines[e]];

// The longest time shown: a measured step may have events past its end.
const total = events.end.reduce((latest, end) => Math.max(latest, end), data.step) || 1e-3;

// What is written on an event, by its kind and coordinate: "F3", and the number alone for a transfer.
const shortLabels = data.events.coordinates.map((c) =>
  String((c.find(([name]) => name === "m") ?? c[0] ?? ["", ""])[1]),
);
const fullLabels = data.events.coordinates.map((c) => c.map(([, index]) => index).join("."));

// Shares of the step in which a row computes, and in which it waits for communication, with nothing else to run.
const busy = new Float64Array(rows.length);
const exposed = new Float64Array(rows.length);
for (let e = 0; e < events.count; e++) {
  if (events.stream[e] !== COMPUTE) continue;
  busy[events.row[e]] += (events.end[e] - events.start[e] - events.communication[e]) / total;
  exposed[events.row[e]] += events.communication[e] / total;
}

// What the page shows at the moment; only page.js writes it.
const state = {
  from: 0,
  to: total, // of the time axis, in seconds
  hovered: -1, // an event
  line: 0,
  pinned: 0, // lines of the plan, from 1
  selected: 0, // a row
  scroll: 0, // of the tracks, in pixels
  pointer: null, // {x, y, canvas}, in pixels of a canvas
};
const activeLine = () => state.line || state.pinned;
