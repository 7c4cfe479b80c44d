// elements.js: elements with text in them, which never becomes markup.

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// A text in which what stands in backticks is code.
export const spelled = (text) =>
  text.split("`").map((part, at) => (at % 2 ? element("code", "", part) : document.createTextNode(part)));
