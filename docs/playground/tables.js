// tables.js: the figures, the memory and the communication of a step.

import { element } from "./elements.js";

const BAD = /^([2-9]\d\d|1\d\d)(\.\d)?%$/; // of capacity

export function writeFigures(place, figures) {
  place.replaceChildren(
    ...figures.map(([name, value]) => {
      const isBad = name === "of capacity" && BAD.test(value.replaceAll(",", "")) && value !== "100.0%";
      return element("div", isBad ? "bad" : "", element("dt", "", name), element("dd", "", value));
    }),
  );
}

// A bar for a device of each role, with the parts of its peak; the line is its capacity.
export function writeMemory(place, rows) {
  const legend = new Set(rows.flatMap((row) => row.parts.map((part) => part.name)));
  place.replaceChildren(
    element("h2", "", "memory of a device at its peak"),
    element("ul", "legend", ...[...legend].map((name) => element("li", "", element("i", `part-${name}`), name))),
    element("div", "bars", ...rows.map(memoryRow)),
  );
}

function memoryRow(row) {
  const bar = element("div", "bar", ...row.parts.map((part) => {
    const one = element("i", `part-${part.name}`);
    one.style.width = `${part.share * 100}%`;
    one.title = `${part.name} ${part.size}`;
    return one;
  }));
  if (row.limit !== null && row.limit < 1) {
    const limit = element("b", "limit");
    limit.style.left = `${row.limit * 100}%`;
    limit.title = "what a device has";
    bar.append(limit);
  }
  const name = element("span", "role", row.role);
  name.title = `ranks ${row.ranks}${row.device ? ` · ${row.device}` : ""}`;
  const full = element("span", row.isOver ? "full bad" : "full", row.full ?? "");
  return element("div", "row", name, bar, element("span", "peak", row.peak), full);
}

export function writeTable(place, table) {
  const heads = table.columns.map((column) => element("th", column.kind, column.name));
  const rows = table.rows.map((row) =>
    element("tr", "", ...row.map((text, at) => {
      const cell = element("td", table.columns[at].kind, element("bdi", "", text));
      cell.title = text;
      return cell;
    })),
  );
  const notes = table.notes.map((note) => element("p", "", note));
  place.replaceChildren(
    element("h2", "", table.title),
    element("div", "scroll", element("table", "", element("thead", "", element("tr", "", ...heads)), element("tbody", "", ...rows)), ...notes),
  );
}
