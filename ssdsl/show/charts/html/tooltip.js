// tooltip.js: what is below the pointer, in words.

const tooltip = document.getElementById("tooltip");
const MOST_LINES = 6; // of the plan in a tooltip

function hideTooltip() {
  tooltip.hidden = true;
}

// `pairs` are [word, value, isStrong], `x` and `y` of the window.
function showTooltip(x, y, title, pairs, below = []) {
  const list = element(
    "dl",
    "",
    ...pairs.flatMap(([word, value, isStrong]) => {
      const pair = [element("dt", isStrong ? "strong" : "", word), element("dd", isStrong ? "strong" : "", value)];
      return pair;
    }),
  );
  tooltip.replaceChildren(element("h3", "", ...title), list, ...below);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > window.innerWidth - 8 ? x - 16 - width : x + 16;
  const top = y + 18 + height > window.innerHeight - 8 ? y - 14 - height : y + 18;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${Math.max(8, top)}px`;
}

function chip(kind, letter) {
  const made = span(letter ? "chip" : "chip thin", letter);
  made.style.background = `var(--${kind})`;
  made.style.color = `var(--${kind}-ink)`;
  return made;
}

function dot(colour) {
  const made = span("dot", "");
  made.style.background = colour;
  return made;
}

function describeEvent(e, x, y) {
  const kind = KINDS[events.kind[e]];
  const duration = events.end[e] - events.start[e];
  const row = rows[events.row[e]];
  const pairs = [["row", row.name]];
  const coordinate = coordinateOf(e);
  if (coordinate.length) pairs.push(["at", coordinate.map(([name, index]) => `${name} = ${index}`).join(", ")]);
  pairs.push(["start", moment(events.start[e], 2000)], ["duration", seconds(duration)]);
  const communication = events.communication[e];
  if (communication > 0) pairs.push(["exposed communication", `${seconds(communication)} · ${share(communication / duration)}`]);
  if (events.bytes[e] > 0) {
    const rate = duration > 0 ? ` · ${size(events.bytes[e] / duration)}/s` : "";
    pairs.push(["bytes", size(events.bytes[e]) + rate]);
  }
  for (const at of flowsOf.get(e) ?? []) {
    if (flows.source[at] === e) pairs.push(["to", rows[events.row[flows.target[at]]].name]);
    else pairs.push(["from", rows[events.row[flows.source[at]]].name]);
  }
  pairs.push(["order", events.fromPlan[e] ? "as the plan says" : "chosen by the compiler"]);
  const title = [chip(kind, letterOf(e)), `${WORDS[kind] ?? kind}${nameOf(e) ? ` · ${nameOf(e)}` : ""}`];
  showTooltip(x, y, title, pairs, quotedLines(linesOf(e)));
}

function quotedLines(numbers) {
  const lines = numbers.filter((n) => planLines[n - 1]?.trim());
  if (!lines.length) return [];
  const items = lines
    .slice(0, MOST_LINES)
    .map((n) => element("li", "", span("", n), span("", planLines[n - 1].trim())));
  if (lines.length > MOST_LINES)
    items.push(element("li", "", span("", "…"), span("", `${lines.length - MOST_LINES} more`)));
  return [element("ol", "", ...items)];
}

function describeRow(row, x, y) {
  const { name, devices, ranks, device } = rows[row];
  const pairs = [
    [devices === 1 ? "rank" : "ranks", ranks || "none"],
    ["devices", String(devices)],
  ];
  if (device) pairs.push(["kind", device]);
  pairs.push(["computes", share(busy[row])], ["exposed communication", share(exposed[row])]);
  const memory = memoryOf.get(row);
  if (memory) pairs.push(["peak memory", size(memory.peakBytes)]);
  showTooltip(x, y, [name], pairs);
}

const partColour = (name) => `var(--part-${name})`;
const partTerm = (name) => element("dt", "", dot(partColour(name)), name);

// The parts of the peak near its point; elsewhere the memory of the rows at that time.
function describeMemory(at, x, y) {
  const selected = memoryOf.get(state.selected);
  const peak = selected && peakPoint(selected);
  if (peak && Math.hypot(at.x - peak.x, at.y - peak.y) < 12) {
    const pairs = selected.parts.map(([name, bytes]) => [partTerm(name), size(bytes)]);
    if (selected.capacity)
      pairs.push(["capacity", `${size(selected.capacity)} · ${share(selected.peakBytes / selected.capacity)} used`]);
    return showTooltip(
      x,
      y,
      [`Peak of ${rows[selected.row].name}: ${size(selected.peakBytes)}`],
      [["at", moment(selected.peakTime, 2000)], ...pairs],
    );
  }
  const time = timeOf(at.x);
  if (time < 0 || time > total) return hideTooltip();
  const shown = memories.filter((memory) => memories.length <= 10 || memory.row === state.selected);
  const pairs = shown.map((memory) => [
    rows[memory.row].name,
    size(bytesAt(memory, time)),
    memory.row === state.selected,
  ]);
  const parts = selected ? partsAt(selected, time).map(([name, bytes]) => [partTerm(name), size(bytes)]) : [];
  showTooltip(x, y, [`Memory at ${moment(time, 2000)}`], [...pairs, ...parts]);
}
