// editor.js: a text area over the same text in colours, with line numbers, and waves under what is wrong.

import { element } from "./elements.js";

const TOKEN =
  /(#.*)|("[^"\n]*")|(\.[A-Za-z_]\w*)|([A-Za-z_]\w*)|(\d+(?:\.\d+)?)|(->|\.\.|[=!<>]=|\/\/|[-+*%&|<>=])|(\s+|.)/g;
const INDENT = "    ";

export class Editor {
  // `changed` is called after each change of the user's; `pointed` with the number of the line whose number the pointer
  // is on, or 0.
  constructor(place, keywords, changed, pointed) {
    this.keywords = new Set(keywords);
    this.marks = []; // {line, column, end: {line, column}, severity, message}
    this.lit = new Set(); // lines that an event of the timeline is from
    this.active = new Set(); // lines that have events
    this.ink = element("div", "ink");
    this.ink.setAttribute("aria-hidden", "true");
    this.area = element("textarea");
    Object.assign(this.area, { spellcheck: false, autocapitalize: "off", autocomplete: "off" });
    this.area.setAttribute("aria-label", "Text of the plan");
    this.sheet = element("div", "sheet", this.ink, this.area);
    place.append(this.sheet);
    this.area.addEventListener("input", () => (this.#edited(), changed()));
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.area.addEventListener("pointermove", (event) => this.#hover(event, pointed));
    this.area.addEventListener("pointerleave", () => pointed(0));
  }

  get text() {
    return this.area.value;
  }

  // Changes only what differs, so that the caret stays and one undo brings it back.
  set text(text) {
    const old = this.area.value;
    if (text === old) return;
    if (!old) {
      this.area.value = text; // nothing to go back to
      return this.#edited();
    }
    let start = 0;
    while (start < old.length && old[start] === text[start]) start++;
    let end = 0;
    while (end < Math.min(old.length, text.length) - start && old.at(-1 - end) === text.at(-1 - end)) end++;
    const focused = document.activeElement;
    const { selectionStart, selectionEnd } = this.area;
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(start, old.length - end);
    const middle = text.slice(start, text.length - end);
    document.execCommand(middle ? "insertText" : "delete", false, middle);
    if (this.area.value !== text) this.area.value = text;
    const moved = (at) => (at <= start ? at : Math.max(start, at + text.length - old.length));
    this.area.setSelectionRange(moved(selectionStart), moved(selectionEnd));
    if (focused !== this.area) focused?.focus?.({ preventScroll: true });
    this.#edited();
  }

  // Marks what is wrong.
  mark(marks) {
    this.marks = marks;
    this.draw();
  }

  // Marks lines that have events in the timeline, and those of the event under the pointer.
  light(active, lit) {
    this.active = new Set(active);
    this.lit = new Set(lit);
    [...this.ink.children].forEach((line, at) => {
      line.classList.toggle("active", this.active.has(at + 1));
      line.classList.toggle("lit", this.lit.has(at + 1));
    });
  }

  // Puts the caret to a place, which is counted from 1.
  go(line, column) {
    const before = this.text.split("\n").slice(0, line - 1);
    const at = before.reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
    this.area.focus();
    this.area.setSelectionRange(at, at);
    this.ink.children[line - 1]?.scrollIntoView({ block: "nearest" });
  }

  draw() {
    this.ink.replaceChildren(...this.text.split("\n").map((text, at) => this.#line(text, at + 1)));
  }

  #edited() {
    this.marks = [];
    this.active = this.lit = new Set();
    this.draw();
  }

  #line(text, number) {
    const marks = this.marks.filter((mark) => mark.line <= number && number <= mark.end.line);
    const line = element("div", "line");
    for (const mark of marks) line.classList.add(mark.severity);
    line.classList.toggle("active", this.active.has(number));
    line.classList.toggle("lit", this.lit.has(number));
    const within = marks.map((mark) => {
      const from = mark.line === number ? mark.column - 1 : 0;
      const to = mark.end.line === number ? mark.end.column - 1 : text.length;
      return { ...mark, from, to: Math.max(to, from + 1) };
    });
    for (const [word, at, className] of this.#tokens(text)) line.append(...pieces(word, at, className, within));
    const behind = within.filter((mark) => mark.to > text.length);
    if (behind.length) line.append(...pieces(" ", text.length, "", behind));
    if (!line.childNodes.length) line.append(element("br"));
    return line;
  }

  *#tokens(text) {
    for (const token of text.matchAll(TOKEN)) {
      const [all, comment, string, attribute, name, digits, operator] = token;
      const isCall = name && text[token.index + name.length] === "(";
      const kinds = { comment, string, attribute, keyword: name && this.keywords.has(name), call: isCall, digits, operator };
      yield [all, token.index, Object.keys(kinds).find((kind) => kinds[kind]) ?? ""];
    }
  }

  #key(event) {
    if (event.key === "Tab" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      document.execCommand("insertText", false, INDENT);
    } else if (event.key === "Enter" && !event.isComposing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const line = this.text.slice(0, this.area.selectionStart).split("\n").at(-1);
      const deeper = /:\s*(#.*)?$/.test(line) && !/^\s*(#|use\b)/.test(line) ? INDENT : "";
      document.execCommand("insertText", false, `\n${line.match(/^\s*/)[0]}${deeper}`);
    } else if (event.key === "Escape") {
      this.area.blur(); // and Tab leaves
    }
  }

  // What is wrong under the pointer, and the line whose number it is on.
  #hover(event, pointed) {
    const below = document.elementsFromPoint(event.clientX, event.clientY);
    const line = below.find((one) => one.classList.contains("line"));
    const number = [...this.ink.children].indexOf(line) + 1;
    const isOnNumber = event.clientX - this.sheet.getBoundingClientRect().left < 40;
    pointed(isOnNumber ? number : 0);
    this.area.title = below.find((one) => one.dataset.message)?.dataset.message ?? "";
  }
}

// A word, which is at a place of its line, in pieces: those in a mark are under waves.
function pieces(word, at, className, marks) {
  const cuts = marks.flatMap(({ from, to }) => [from - at, to - at]).filter((cut) => cut > 0 && cut < word.length);
  const ends = [...new Set([0, ...cuts, word.length])].sort((a, b) => a - b);
  return ends.slice(1).map((end, n) => {
    const mark = marks.find(({ from, to }) => from <= at + ends[n] && at + ends[n] < to);
    const text = word.slice(ends[n], end);
    if (!className && !mark) return document.createTextNode(text);
    const span = element("span", [className, mark && `wave ${mark.severity}`].filter(Boolean).join(" "), text);
    if (mark) span.dataset.message = mark.message;
    return span;
  });
}
