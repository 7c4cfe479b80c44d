"""A text with a name, and spans: the places in it that a diagnostic can point at."""

from ssdsl.record import Record


class Source(Record):
    """A named text; `name` is what the user typed to open it."""

    name: str
    text: str

    def line_column(self, offset: int) -> tuple[int, int]:
        """Line and column of a character offset, both counted from one."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def line(self, number: int) -> str:
        """The text of one line, counted from one, without its line end."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if number <= len(lines) else ""


class Span(Record):
    """A half-open range of characters of a source."""

    source: Source
    start: int
    end: int

    @property
    def text(self) -> str:
        """The characters."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """The line of its first character, counted from one."""
        return self.source.line_column(self.start)[0]

    def to(self, other: "Span") -> "Span":
        """The span from the start of this one to the end of another."""
        return Span(self.source, self.start, max(self.end, other.end))

    def __str__(self) -> str:
        line, column = self.source.line_column(self.start)
        return f"{self.source.name}:{line}:{column}"
