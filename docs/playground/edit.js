// edit.js: changes of a text that the compiler names.

// The text with a change: lines and columns count from 1, columns in characters.
export function edited(text, edit) {
  const offset = ({ line, column }) => {
    const lines = text.split("\n");
    const before = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    return before + [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length;
  };
  return text.slice(0, offset(edit)) + edit.text + text.slice(offset(edit.end));
}
