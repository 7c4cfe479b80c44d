"""The comments of a text, which the parser drops."""

import re

from ssdsl.lang.header import IN_HEADER
from ssdsl.record import Record
from ssdsl.text.source import Source

PIECE = re.compile(r'"[^"\n]*"|#[^\n]*|\n')  # a string first: a `#` in it begins no comment


class Comment(Record):
    """A comment with its `#`, the number of its line and its column from zero."""

    text: str
    line: int
    column: int


def comments(source: Source) -> tuple[Comment, ...]:
    """All comments, in order."""
    found, line, start = [], 1, 0
    for piece in PIECE.finditer(source.text):
        if piece[0] == "\n":
            line, start = line + 1, piece.end()
        elif piece[0].startswith("#"):
            found.append(Comment(piece[0].rstrip(), line, piece.start() - start))
    return tuple(found)


def summary(source: Source) -> str:
    """The comment at the top of a plan, without its header, as one line: `# gpipe.ssp: all forwards first` gives `all
    forwards first`."""
    lines = []
    for text in source.text.lstrip().split("\n"):
        if not text.startswith("#"):
            break
        if not IN_HEADER.match(text.rstrip()):
            lines.append(text.lstrip("# ").rstrip())
    return re.sub(r"^\S+\.ssp\s*(:|--)\s*", "", " ".join(lines).strip())
