// lanes.js: the events of a row in lanes, each sorted by start for search; concurrent transfers get lanes of their own.

const MOST_LANES = 3; // of transfers, in a row

// `reach[k]` is the latest end among the first k + 1 events, so that what is visible is found by halving.
function lane(list) {
  const reach = new Float64Array(list.length);
  let latest = -Infinity;
  list.forEach((e, k) => (reach[k] = latest = Math.max(latest, events.end[e])));
  return { events: Int32Array.from(list), start: Float64Array.from(list, (e) => events.start[e]), reach };
}

// Each transfer in the first lane that is free, the last one if none is.
function transferLanes(list) {
  const lists = [[]];
  const ends = [-Infinity];
  for (const e of list) {
    const slack = (events.end[e] - events.start[e]) * 1e-3; // rounding is no overlap
    let at = ends.findIndex((end) => end <= events.start[e] + slack);
    if (at < 0 && lists.length < MOST_LANES) at = lists.push([]) - 1;
    if (at < 0) at = MOST_LANES - 1;
    lists[at].push(e);
    ends[at] = Math.max(ends[at] ?? -Infinity, events.end[e]);
  }
  return lists.map(lane);
}

const tracks = (() => {
  const lists = rows.map(() => [[], []]);
  const order = Int32Array.from({ length: events.count }, (_, e) => e).sort(
    (a, b) => events.start[a] - events.start[b] || a - b,
  );
  for (const e of order) lists[events.row[e]][events.stream[e]].push(e);
  return lists.map(([compute, transfers]) => ({ compute: lane(compute), transfers: transferLanes(transfers) }));
})();
const hasTransfers = tracks.some((track) => track.transfers[0].events.length > 0);
const laneOf = new Uint8Array(events.count);
for (const track of tracks) track.transfers.forEach((one, at) => one.events.forEach((e) => (laneOf[e] = at)));

// The first place in `values`, which do not fall, that is at least `least`.
function firstAtLeast(values, least) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The event of a lane at a time, or the nearest one within `tolerance` of it; -1 for none.
function eventAt(one, time, tolerance) {
  let best = -1;
  let nearest = tolerance;
  for (
    let k = firstAtLeast(one.reach, time - tolerance);
    k < one.events.length && one.start[k] <= time + tolerance;
    k++
  ) {
    const e = one.events[k];
    const distance = Math.max(events.start[e] - time, time - events.end[e], 0);
    if (distance < nearest || (distance === 0 && best < 0)) ((best = e), (nearest = distance));
  }
  return best;
}

// Where things are, in pixels of the tracks' canvas.
const PAD = 7; // above and below a row
const rowTop = (row) => AXIS + row * geometry.rowHeight - state.scroll;
const innerHeight = () => geometry.rowHeight - 2 * PAD;
const transferHeight = () => (hasTransfers ? Math.max(5, Math.min(16, Math.round(innerHeight() * 0.22))) : 0);
const computeHeight = () => innerHeight() - (hasTransfers ? transferHeight() + 3 : 0);

// The top and height of a lane: the compute stream's, or that of transfer lane `at`.
function laneBox(row, stream, at) {
  const top = rowTop(row) + PAD;
  if (stream === COMPUTE) return { y: top, height: computeHeight() };
  const height = transferHeight() / tracks[row].transfers.length;
  return {
    y: top + computeHeight() + 3 + at * height,
    height: Math.max(1, height - (tracks[row].transfers.length > 1 ? 1 : 0)),
  };
}

function eventBox(e) {
  const { y, height } = laneBox(events.row[e], events.stream[e], laneOf[e]);
  const x = xOf(events.start[e]);
  return { x, y, width: xOf(events.end[e]) - x, height };
}

// The event below a point of the tracks' canvas, or -1.
function eventBelow(x, y) {
  const row = Math.floor((y - AXIS + state.scroll) / geometry.rowHeight);
  if (y < AXIS || x < geometry.left || row < 0 || row >= rows.length) return -1;
  const tolerance = (3 * (state.to - state.from)) / (geometry.right - geometry.left);
  const within = y - rowTop(row) - PAD;
  if (within < 0 || within > innerHeight()) return -1;
  if (within <= computeHeight() + 1) return eventAt(tracks[row].compute, timeOf(x), tolerance);
  const lanes = tracks[row].transfers;
  const at = Math.floor(((within - computeHeight() - 3) / transferHeight()) * lanes.length);
  return eventAt(lanes[Math.max(0, Math.min(lanes.length - 1, at))], timeOf(x), tolerance);
}
