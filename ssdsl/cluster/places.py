"""Finds the places of keys and values in a TOML text, which tomllib does not report.

The text must be one that tomllib has accepted: nothing is checked again.
"""

import re
from dataclasses import dataclass, field

from ssdsl.text.source import Source, Span

Path = tuple[str | int, ...]
SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""|' + r"'''.*?'''|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SCALAR = re.compile(r"[^,\]}#\n]*[^,\]}#\s]")


@dataclass(slots=True)
class Places:
    """Spans by path: `("nodes", 0, "count")` is the count of the first of `[[nodes]]`."""

    keys: dict[Path, Span] = field(default_factory=dict)
    values: dict[Path, Span] = field(default_factory=dict)

    def key(self, path: Path) -> Span | None:
        """The span of the key, or of the nearest table around it."""
        return next((span for n in range(len(path), 0, -1) if (span := self._exactly(path[:n]))), None)

    def value(self, path: Path) -> Span | None:
        """The span of the value, or else what `key` finds."""
        return self.values.get(path) or self.key(path)

    def _exactly(self, path: Path) -> Span | None:
        """The span of a key, or of an element of an array, which has no key."""
        return self.keys.get(path) or (self.values.get(path) if isinstance(path[-1], int) else None)


def find_places(source: Source) -> Places:
    """The places of all keys and values of the text."""
    return _Reader(source).document()


class _Reader:
    """Walks the text; `at` is the next character."""

    def __init__(self, source: Source) -> None:
        self.source, self.text, self.at = source, source.text, 0
        self.found = Places()
        self.last: dict[Path, int] = {}  # the newest element of each [[array]]

    def document(self) -> Places:
        table: Path = ()
        self._space()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._space()
        return self.found

    def _header(self) -> Path:
        start, is_array = self.at, self.text.startswith("[[", self.at)
        self.at += 1 + is_array
        names = [name for name, _ in self._dotted()]
        self._space()
        self.at += 1 + is_array
        path: Path = ()
        for n, name in enumerate(names):
            path = (*path, name)
            if is_array and n == len(names) - 1:
                self.last[path] = self.last.get(path, -1) + 1
            if path in self.last:
                path = (*path, self.last[path])
        self.found.keys.setdefault(path, Span(self.source, start, self.at))
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for name, span in self._dotted():
            path = (*path, name)
            self.found.keys.setdefault(path, span)
        self._space()
        self.at += 1  # the =
        self._value(path)

    def _dotted(self) -> list[tuple[str, Span]]:
        """The parts of a key `a."b c".d`, each with its place."""
        parts = []
        while True:
            self._space()
            quoted = self.text[self.at] in "\"'"
            match = (STRING if quoted else BARE_KEY).match(self.text, self.at)
            assert match is not None, "tomllib has accepted this key"
            self.at = match.end()
            name = match.group()[1:-1] if quoted else match.group()
            parts.append((name, Span(self.source, match.start(), match.end())))
            self._space()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: Path) -> None:
        self._space()
        start = self.at
        match self.text[self.at]:
            case "[":
                self._items(path, "]")
            case "{":
                self._items(path, "}")
            case _:
                scalar = STRING.match(self.text, self.at) or SCALAR.match(self.text, self.at)
                assert scalar is not None, "tomllib has accepted this value"
                self.at = scalar.end()
        self.found.values[path] = Span(self.source, start, self.at)

    def _items(self, path: Path, closing: str) -> None:
        """The elements of an array, or the pairs of an inline table."""
        self.at += 1
        self._space()
        number = 0
        while self.text[self.at] != closing:
            if closing == "]":
                self._value((*path, number))
                number += 1
            else:
                self._pair(path)
            self._space()
            if self.text[self.at] == ",":
                self.at += 1
                self._space()
        self.at += 1

    def _space(self) -> None:
        match = SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
