"""Writes a script as text in one layout: four spaces a block, one space around operators, and comments aligned."""

from itertools import groupby

from ssdsl.lang.formatter.comments import Comment, comments
from ssdsl.lang.formatter.write import Line, write
from ssdsl.lang.nodes import Script
from ssdsl.record import Record
from ssdsl.text.source import Source


class _Row(Record):
    """A line of the result: a statement, a comment or both; `first` and `last` are line numbers in the source."""

    indent: int
    text: str
    comment: str
    first: int
    last: int


def format_script(script: Script, source: Source | None = None) -> str:
    """The text of a script. With `source`, its comments stay, and one empty line wherever it has some."""
    lines = list(write(script))
    if source is None:
        return "".join(f"{'    ' * line.indent}{line.text}\n" for line in lines)
    rows = _merge(lines, comments(source), source)
    out: list[str] = []
    for _, group in groupby(enumerate(rows), key=lambda pair: _run(rows, pair[0])):
        out += _aligned([row for _, row in group])
    return "".join(line + "\n" for line in _spaced(rows, out))


def _merge(lines: list[Line], notes: tuple[Comment, ...], source: Source) -> list[_Row]:
    """Statements and comments in the order of the source."""
    rows: list[_Row] = []
    pending = list(notes)
    starts = _Lines(source)
    for line in lines:
        first, last = starts.number(line.span.start), starts.number(max(line.span.start, line.span.end - 1))
        own = [c for c in pending if c.line < first or (c.line < last and c.line >= first)]
        rows += [_Row(_indent_of(c, rows, line), "", c.text, c.line, c.line) for c in own]
        behind = next((c for c in pending if c.line == last), None)
        rows.append(_Row(line.indent, line.text, behind.text if behind else "", first, last))
        pending = [c for c in pending if c.line > last]
    return rows + [_Row(min(c.column // 4, _depth(rows)), "", c.text, c.line, c.line) for c in pending]


def _indent_of(comment: Comment, rows: list[_Row], line: Line) -> int:
    """A comment belongs to the line below it, unless it is indented more: then to the block above."""
    return line.indent if comment.column <= line.column else min(_depth(rows), comment.column // 4)


def _depth(rows: list[_Row]) -> int:
    return rows[-1].indent if rows else 0


def _run(rows: list[_Row], at: int) -> int:
    """The first row of the run of neighbouring lines whose trailing comments are aligned with row `at`."""
    while at > 0 and rows[at].text and rows[at].comment and rows[at - 1].text and rows[at - 1].comment:
        if rows[at].first != rows[at - 1].last + 1:
            break
        at -= 1
    return at


def _aligned(rows: list[_Row]) -> list[str]:
    width = max(4 * r.indent + len(r.text) for r in rows)
    out = []
    for r in rows:
        text = "    " * r.indent + r.text
        out.append(f"{text:{width}}  {r.comment}" if r.text and r.comment else text + r.comment)
    return out


def _spaced(rows: list[_Row], lines: list[str]) -> list[str]:
    """One empty line wherever the source has some."""
    out: list[str] = []
    for i, line in enumerate(lines):
        if i and rows[i].first > rows[i - 1].last + 1:
            out.append("")
        out.append(line)
    return out


class _Lines:
    """Line numbers of offsets in a source, mostly ascending: it counts newlines from the last offset on."""

    def __init__(self, source: Source) -> None:
        self.text, self.at, self.line = source.text, 0, 1

    def number(self, offset: int) -> int:
        self.line += (
            self.text.count("\n", self.at, offset) if offset > self.at else -self.text.count("\n", offset, self.at)
        )
        self.at = offset
        return self.line
