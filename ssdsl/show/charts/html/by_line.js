// by_line.js: which lines of the plan memory and waiting come from, below the plan; they mark what its lines mark.

const byLineElements = [];

function writeByLine() {
  const section = document.getElementById("by-line");
  section.hidden = !data.byLine?.rows.length;
  if (section.hidden) return;
  const heading = element("tr", "", ...["by line", "peak memory", "waits"].map((word) => element("th", "", word)));
  const table = element("table", "", heading, ...data.byLine.rows.map(byLineElement));
  table.title = data.byLine.notes.join("\n");
  section.append(table);
}

function byLineElement(row) {
  const words = element("td", "", span("number", row.line || ""), ...coloured(row.statement));
  words.title = row.statement;
  const made = element(
    "tr",
    "",
    words,
    amount(row.peak_bytes, row.peak_share, size, "peak"),
    amount(row.waits_s, row.step_share, seconds, "waits"),
  );
  if (row.line) {
    made.dataset.line = row.line;
    byLineElements.push(made);
  }
  return made;
}

// A figure and its share, which is also the length of a line below it.
function amount(value, part, words, className) {
  const cell = element("td", className);
  if (!value) return cell;
  cell.append(element("b", "", share(part)), ` ${words(value)}`);
  cell.style.setProperty("--share", Math.min(1, part));
  return cell;
}
