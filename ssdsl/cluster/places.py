"""Finds the places of keys and values in a TOML text, which tomllib does not report.

The text must be one that tomllib has accepted: nothing is checked again.
"""

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from lark import Lark, Tree

from ssdsl.text.source import Source, Span

Path = tuple[str | int, ...]
Node = Any  # a tree or a token of lark's
GRAMMAR = r"""
start: (table | array | pair)*
table: "[" key "]"
array: "[[" key "]]"
pair: key "=" value
key: (WORD | STRING) ("." (WORD | STRING))*
value: SCALAR | STRING | items | pairs
items: "[" (value ",")* value? "]"
pairs: "{" (pair ",")* pair? "}"
WORD: /[A-Za-z0-9_-]+/
STRING: /"{3}(\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(\\.|[^"\\\n])*"|'[^'\n]*'/s
SCALAR: /[^\s,\]}#"'\[{]([^,\]}#\n]*[^,\]}#\s])?/
%ignore /\s+|#[^\n]*/
"""


@dataclass(slots=True)
class TomlSpans:
    """Spans by path: `("nodes", 0, "count")` is the count of the first of `[[nodes]]`."""

    keys: dict[Path, Span] = field(default_factory=dict)
    values: dict[Path, Span] = field(default_factory=dict)


@dataclass
class Places:
    """The spans of keys and values of a text, which is parsed when the first is asked for: only a mistake has one."""

    source: Source

    @cached_property
    def _spans(self) -> TomlSpans:
        return find_spans(self.source)

    def key(self, path: Path) -> Span | None:
        """The span of the key, or of the nearest table around it."""
        return next((span for n in range(len(path), 0, -1) if (span := self._exactly(path[:n]))), None)

    def value(self, path: Path) -> Span | None:
        """The span of the value, or else what `key` finds."""
        return self._spans.values.get(path) or self.key(path)

    def _exactly(self, path: Path) -> Span | None:
        """The span of a key, or of an element of an array, which has no key."""
        spans = self._spans
        return spans.keys.get(path) or (spans.values.get(path) if isinstance(path[-1], int) else None)


def find_spans(source: Source) -> TomlSpans:
    """The spans of all keys and values of the text."""
    finder = _Finder(source)
    parts: Node = _parser().parse(source.text).children
    table: Path = ()
    for part in parts:
        if part.data == "pair":
            finder.pair(part, table)
        else:
            table = finder.header(part)
    return finder.found


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True)


class _Finder:
    """Walks the tree of a text."""

    def __init__(self, source: Source) -> None:
        self.source, self.found = source, TomlSpans()
        self.last: dict[Path, int] = {}  # the newest element of each [[array]]

    def header(self, header: Node) -> Path:
        """The path of the table that a `[table]` or an `[[array]]` begins."""
        path: Path = ()
        (key,) = header.children
        for name in key.children:
            path = (*path, _word(name))
            if header.data == "array" and name is key.children[-1]:
                self.last[path] = self.last.get(path, -1) + 1
            if path in self.last:
                path = (*path, self.last[path])
        self.found.keys.setdefault(path, self._span(header))
        return path

    def pair(self, pair: Node, path: Path) -> None:
        """Finds a key in the table of this path, and its value."""
        key, value = pair.children
        for name in key.children:
            path = (*path, _word(name))
            self.found.keys.setdefault(path, Span(self.source, name.start_pos, name.end_pos))
        self._value(value, path)

    def _value(self, value: Node, path: Path) -> None:
        self.found.values[path] = self._span(value)
        (inner,) = value.children
        for number, child in enumerate(inner.children if isinstance(inner, Tree) else ()):
            if inner.data == "items":
                self._value(child, (*path, number))
            else:
                self.pair(child, path)

    def _span(self, tree: Node) -> Span:
        return Span(self.source, tree.meta.start_pos, tree.meta.end_pos)


def _word(name: Node) -> str:
    return name[1:-1] if name.type == "STRING" else str(name)
