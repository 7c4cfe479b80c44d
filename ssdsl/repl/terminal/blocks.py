"""Finds where an entry ends: an open bracket and a `:` at the end of a line continue it, an empty line ends a block."""

import re
from collections.abc import Iterable, Iterator

from ssdsl.lang.nodes import STATEMENTS

PIECE = re.compile(r'"[^"\n]*"?|#[^\n]*|[(\[]|[)\]]')
ENDS_BRACKET = re.compile(rf"({'|'.join(s for s in STATEMENTS if s not in ('for', 'if'))})\b")
SAME_BLOCK = re.compile(r"\s|(elif|else|or)\b")
INDENT = "    "


def goes_on(text: str) -> bool:
    """Whether a further line belongs to this entry."""
    if text.startswith(":"):
        return False
    return is_open(text) or (opens_block(text) and bool(text.rpartition("\n")[2].strip()))


def is_open(text: str) -> bool:
    """Whether a bracket is open at the end of a text."""
    pieces = [p[0] for p in PIECE.finditer(text)]
    return sum((p in "([") - (p in ")]") for p in pieces) > 0


def opens_block(text: str) -> bool:
    """Whether a line ends with `:` and so opens a block. A line that begins with `use` does not: its names are
    missing."""
    return any(_bare(line).endswith(":") and not line.startswith("use") for line in text.split("\n"))


def _bare(line: str) -> str:
    """A line without its comment."""
    return PIECE.sub(lambda p: "" if p[0].startswith("#") else p[0], line).rstrip()


def indentation(text: str) -> str:
    """The indentation of the line that follows this text."""
    last = text.rpartition("\n")[2]
    here = last[: len(last) - len(last.lstrip(" "))]
    return here + INDENT if _bare(last).endswith((":", "(", "[")) else here


def entries(lines: Iterable[str]) -> Iterator[str]:
    """The entries of a text that is read line by line; a block ends with the first line that is not indented."""
    pending = ""
    for line in lines:
        line = line.rstrip("\n")
        if pending and _begins_anew(pending, line):
            yield pending
            pending = ""
        pending = f"{pending}\n{line}" if pending else line
        if not (is_open(pending) or opens_block(pending)):
            yield pending
            pending = ""
    if pending:
        yield pending


def _begins_anew(pending: str, line: str) -> bool:
    if is_open(pending):
        return line.startswith(":") or ENDS_BRACKET.match(line) is not None
    return bool(line) and SAME_BLOCK.match(line) is None
