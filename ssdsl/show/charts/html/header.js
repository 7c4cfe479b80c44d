// header.js: writes the title, the figures, the legend, and the line above the memory.

function writeHeader() {
  document.getElementById("title").textContent = data.title;
  const params = data.params.map(([name, value]) => `${name}=${value}`).join(" ");
  document.getElementById("subtitle").textContent = [data.plan, params, `${counted(events.count, "event")}`]
    .filter(Boolean)
    .join(" · ");
  const devices = rows.reduce((sum, row) => sum + row.devices, 0);
  const mean = (shares) => rows.reduce((sum, row, at) => sum + shares[at] * row.devices, 0) / Math.max(1, devices);
  const figures = [
    ["step", seconds(data.step), "time of one training step"],
    [devices === 1 ? "device" : "devices", devices.toLocaleString("en"), "of all rows"],
    data.bubble === null
      ? ["idle", share(Math.max(0, 1 - mean(busy) - mean(exposed))), "share of the step in which a device does nothing, mean over devices"]
      : ["bubble", share(data.bubble), "idle share of the busiest device, between its first task and its last"],
    ["exposed", share(mean(exposed)), "share of the step in which a device waits for communication, mean over devices"],
  ];
  if (highest) figures.push(["peak memory", size(highest.peakBytes), `of ${rows[highest.row].name}`]);
  document.getElementById("figures").append(
    ...figures.map(([word, value, title]) => {
      const figure = element("div", "", element("dt", "", word), element("dd", "", value));
      figure.title = title;
      return figure;
    }),
  );
}

function writeLegend() {
  const present = new Set(events.kind);
  const entries = KINDS.flatMap((kind, at) =>
    present.has(at) ? [element("li", "", chip(kind, LETTERS[kind] ?? ""), WORDS[kind] ?? kind)] : [],
  );
  if (exposed.some((part) => part > 0) && !present.has(KINDS.indexOf("exposed")))
    entries.push(element("li", "", chip("exposed", ""), WORDS.exposed));
  document.getElementById("legend").append(...entries);
}

// What the selected row's memory is at its peak.
function writeStrip() {
  const strip = document.getElementById("strip");
  const memory = memoryOf.get(state.selected);
  strip.hidden = !memories.length;
  if (!memory) {
    strip.replaceChildren(element("span", "", `Memory · ${rows[state.selected]?.name ?? ""}: not known`));
    return;
  }
  const bar = element(
    "span",
    "bar",
    ...memory.parts.map(([name, bytes]) => {
      const part = span("", "");
      part.style.background = partColour(name);
      part.style.flex = `${bytes} 0 0`;
      return part;
    }),
  );
  const parts = memory.parts.map(([name, bytes]) =>
    element("span", "part", dot(partColour(name)), `${name} ${size(bytes)}`),
  );
  const peak = element("span", "", "at its peak ", element("b", "", size(memory.peakBytes)));
  if (memory.capacity) {
    const used = span(
      memory.peakBytes > memory.capacity ? "over" : "",
      ` · ${share(memory.peakBytes / memory.capacity)} of ${size(memory.capacity)}`,
    );
    peak.append(used);
  }
  strip.replaceChildren(element("span", "", "Memory · ", element("b", "", rows[memory.row].name)), peak, bar, ...parts);
}

function writeView() {
  const whole = state.to - state.from >= total * 0.999;
  document.getElementById("view").textContent = whole
    ? `whole step, ${seconds(total)}`
    : `${moment(state.from, 200)} to ${moment(state.to, 200)} · ${seconds(state.to - state.from)} in view`;
  const note = isMerged ? " · events below a pixel are drawn as shares: zoom in to see each" : "";
  document.getElementById("view").append(note);
}
