// tables.js: what devices wait for, and which lines memory and waiting come from, below the plan; their rows mark what
// its lines mark.

const tableRows = [];

function writeTables() {
  const exposed = writeTable("exposed", data.exposed, ["exposed communication", "a step"], exposedCells);
  if (exposed) exposed.querySelector("tr").after(...data.exposed.notes.map(noteRow));
  const lines = writeTable("by-line", data.byLine, ["by line", "peak memory", "waits"], lineCells);
  if (lines) lines.title = data.byLine.notes.join("\n");
}

// A table of `cells` of each row, in the section of this name, which is hidden without rows.
function writeTable(id, table, words, cells) {
  const section = document.getElementById(id);
  section.hidden = !table?.rows.length;
  if (section.hidden) return null;
  const heading = element("tr", "", ...words.map((word) => element("th", "", word)));
  const made = table.rows.map((row) => {
    const result = element("tr", "", ...cells(row));
    if (row.line) {
      result.dataset.line = row.line;
      tableRows.push(result);
    }
    return result;
  });
  section.append(element("table", "", heading, ...made));
  return section;
}

function lineCells(row) {
  return [
    statementCell(row),
    amount(row.peak_bytes, row.peak_share, size, "peak"),
    amount(row.waits_s, row.step_share, seconds, "waits"),
  ];
}

// The statement, and below it what it communicates and why devices wait for that.
function exposedCells(row) {
  const words = statementCell(row);
  const what = span("", row.communication);
  what.style.color = "var(--ink)";
  words.append(element("div", "why", what, ` of ${row.of}: ${row.why}`));
  return [words, amount(row.exposed_s, row.step_share, seconds, "waits")];
}

function noteRow(note) {
  const cell = element("td", "note", note);
  cell.colSpan = 2;
  return element("tr", "", cell);
}

function statementCell(row) {
  const cell = element("td", "", span("number", row.line || ""), ...coloured(row.statement));
  cell.title = row.statement;
  return cell;
}

// A figure and its share, which is also the length of a line below it.
function amount(value, part, words, className) {
  const cell = element("td", className);
  if (!value) return cell;
  cell.append(element("b", "", share(part)), ` ${words(value)}`);
  cell.style.setProperty("--share", Math.min(1, part));
  return cell;
}
