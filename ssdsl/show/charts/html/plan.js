// plan.js: the plan's text with light colours; its lines are marked by an event and mark events.

const KEYWORDS = new Set(data.keywords);
const TOKEN =
  /(#.*)|("[^"\n]*")|(\.[A-Za-z_]\w*)|([A-Za-z_]\w*)|(\d+(?:\.\d+)?)|(->|\.\.|[=!<>]=|\/\/|[-+*%&|<>=])|(\s+|.)/g;
const lineElements = [];
const values = new Map(data.params); // that the params had when this was drawn

// The sets of lines, and their events, that each line belongs to.
const eventsOfLine = new Map();
data.events.lineSets.forEach((lines) => lines.forEach((line) => eventsOfLine.set(line, 0)));
for (let e = 0; e < events.count; e++)
  for (const line of linesOf(e)) eventsOfLine.set(line, eventsOfLine.get(line) + 1);

function writePlan() {
  const list = document.getElementById("lines");
  document.getElementById("plan-name").textContent = data.plan;
  if (!data.text.trim()) {
    document.querySelector("main").classList.add("no-plan");
    document.getElementById("plan").hidden = true;
    return;
  }
  planLines.forEach((text, at) => list.append(lineElement(text, at + 1)));
}

function lineElement(text, number) {
  const element = document.createElement("div");
  const count = eventsOfLine.get(number) ?? 0;
  element.className = count ? "line has-events" : "line";
  if (count) element.title = counted(count, "event");
  element.dataset.line = number;
  const code = document.createElement("code");
  code.style.setProperty("--indent", text.search(/\S|$/));
  code.append(...coloured(text));
  const [, name, written] = text.match(/^param\s+([A-Za-z_]\w*)\s*=\s*([^"#]*)/) ?? [];
  if (values.has(name) && written.trim() !== String(values.get(name))) code.append(span("value", `${name} = ${values.get(name)}`));
  element.append(span("number", number), code);
  lineElements[number] = element;
  return element;
}

function coloured(text) {
  return [...text.matchAll(TOKEN)].map((token) => {
    const [all, comment, string, attribute, name, digits_, operator] = token;
    if (comment) return span("comment", all);
    if (string) return span("string", all);
    if (attribute) return document.createTextNode(all);
    if (name && KEYWORDS.has(name)) return span("keyword", all);
    if (name && text[token.index + name.length] === "(") return span("call", all);
    if (digits_) return span("digits", all);
    if (operator) return span("operator", all);
    return document.createTextNode(all);
  });
}

// Mark the lines that made the hovered event, or the line that is hovered or kept; scroll to the first of an event's.
function markLines() {
  const ofEvent = state.hovered >= 0 ? linesOf(state.hovered) : [];
  const marked = new Set(ofEvent.length ? ofEvent : activeLine() ? [activeLine()] : []);
  lineElements.forEach((line, number) => {
    line.classList.toggle("marked", marked.has(number));
    line.classList.toggle("pinned", number === state.pinned);
  });
  for (const row of tableRows) row.classList.toggle("marked", marked.has(Number(row.dataset.line)));
  if (ofEvent.length) lineElements[Math.min(...ofEvent)]?.scrollIntoView({ block: "nearest" });
}

// The sets of lines whose events stay lit; a line without events dims nothing.
function markEvents() {
  const line = activeLine();
  lit = eventsOfLine.get(line) ? data.events.lineSets.map((lines) => lines.includes(line)) : null;
}
