// header.js: the options in the header of a plan, `# for: --model gpt --cluster a100x8 --set S=4`, read and changed.

const LINE = /^#[ \t]*for:[ \t]*-/;
const SHORT = { "--model": "-m", "--cluster": "-c", "--set": "-s" };

// The place of an option's last value: {line, start, end, value}, of --set the one of a param; null where there is none.
function found(lines, option, param) {
  const name = param ? `${param}=` : "";
  const pattern = new RegExp(`(?<=[ \\t])(?:${option}|${SHORT[option]})[ =]${name}(\\S*)`, "g");
  for (const line of headerLines(lines).reverse()) {
    const match = [...lines[line].matchAll(pattern)].at(-1);
    if (match) return { line, start: match.index, end: match.index + match[0].length, value: match[1] };
  }
  return null;
}

// The numbers of the lines that have options: comments on top.
function headerLines(lines) {
  const end = lines.findIndex((line) => line.trim() && !line.startsWith("#"));
  return [...lines.slice(0, end < 0 ? lines.length : end).keys()].filter((line) => LINE.test(lines[line]));
}

export const optionOf = (text, option, param = "") => found(text.split("\n"), option, param)?.value ?? null;

// The text with another value of an option; null takes it out.
export function withOption(text, option, value, param = "") {
  const lines = text.split("\n");
  const words = value === null ? "" : `${option} ${param ? `${param}=` : ""}${value}`;
  const place = found(lines, option, param);
  if (place) {
    const line = lines[place.line];
    const changed = line.slice(0, place.start) + words + line.slice(place.end);
    lines[place.line] = changed.replace(words ? /$/ : /[ \t]+(?=[ \t]|$)/, "");
    if (/^#[ \t]*for:[ \t]*$/.test(lines[place.line])) lines.splice(place.line, 1);
  } else if (words) {
    const [first] = headerLines(lines);
    if (first !== undefined) lines[first] = `${lines[first].trimEnd()} ${words}`;
    else lines.splice(/^# *ssdsl \d/.test(lines[0]) ? 1 : 0, 0, `# for: ${words}`, ...(lines[0]?.startsWith("#") ? [] : [""]));
  }
  return lines.join("\n");
}
