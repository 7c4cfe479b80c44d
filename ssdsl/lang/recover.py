"""All mistakes of syntax in a text, and what is left of it: a statement with one is left out, and the rest is parsed
again.

A statement that opens a block becomes `if true:`, a `def` one of another name, so that what is wrong in its block is
told as well; the rows of a clock, which stand in no other block, are left out with it, and so are the other branches of
an `either`.
"""

import re
from collections.abc import Iterator
from itertools import takewhile

from ssdsl.lang.errors.text import MissingBlock
from ssdsl.lang.header import header_of
from ssdsl.lang.nodes import STATEMENTS, Script
from ssdsl.lang.parse import parse_blanked
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source, Span

MOST = 20
PIECE = re.compile(r'"[^"\n]*"|#[^\n]*|[()\[\]]')
BRANCH = re.compile(r"\s*(?:(?:or|else)\s*:|elif\b)")
BEGINS = re.compile(rf"[ \t]*(?:{'|'.join(sorted({*STATEMENTS} - {'for', 'if'}))})\b")
WORD = re.compile(r"[A-Za-z_]\w*")
INSTEAD, FUNCTION = "if true:", "def _():"  # whose block is carried out, or only parsed


class StatementLines(Record):
    """The lines of one statement: where they begin and end in the text, how far the first is indented, and whether a
    bracket in them is never closed."""

    start: int
    end: int
    indent: int
    text: str
    is_open: bool = False

    @property
    def opens(self) -> bool:
        """Whether a block follows."""
        return PIECE.sub(lambda m: "" if m[0].startswith("#") else m[0], self.text).rstrip().endswith(":")


class Recovered(Record):
    """What can be read of a text: the statements that parse, the mistakes of syntax in the order of the text, and the
    words of the statements that were left out, each of which may be a name that they would have bound."""

    script: Script
    mistakes: tuple[Diagnostic, ...] = ()
    words: frozenset[str] = frozenset()


def recovered(source: Source) -> Recovered:
    """The statements of a plan that parse. All of them and no mistakes, if the plan parses."""
    found: list[Diagnostic] = []
    try:
        header_of(source)
    except PlanError as error:
        found += error.diagnostics
    text, script = source.text, None
    while script is None and len(found) < MOST:
        try:
            script = parse_blanked(source, text)
        except PlanError as error:
            (mistake, *_) = error.diagnostics
            left = None if mistake.span is None else _left(text, mistake)
            if left is None or not (isinstance(mistake, MissingBlock) and _had_block(source.text, left)):
                found.append(mistake)
            if left is None or (changed := _without(text, left)) == text:
                break
            text = changed
    words = {w[0] for w in WORD.finditer(source.text) if text[w.start() : w.end()] != w[0]}
    return Recovered(script or Script((), span=Span(source, 0, len(source.text))), in_order(*found), frozenset(words))


def in_order(*found: Diagnostic) -> tuple[Diagnostic, ...]:
    """Diagnostics in the order of the text; those without a place come first."""
    return tuple(sorted(found, key=lambda d: d.span.start if d.span is not None else 0))


def statements(text: str) -> Iterator[StatementLines]:
    """The lines of each statement. A line that begins with the word of a statement begins one also inside of a bracket
    that was never closed."""
    start, depth, at = 0, 0, 0
    for line in text.splitlines(keepends=True):
        if depth and BEGINS.match(line):
            yield _lines(text, start, at, is_open=True)
            depth = 0
        if not depth:
            start = at
        at += len(line)
        signs = [piece for piece in PIECE.findall(line) if piece in "()[]"]
        depth = max(0, depth + sum(1 if sign in "([" else -1 for sign in signs))
        is_block = depth and line.partition("#")[0].rstrip().endswith(":")  # which no bracket has inside
        if is_block or (not depth and line.partition("#")[0].strip()):
            yield _lines(text, start, at, is_open=bool(is_block))
            depth = 0
    if depth:
        yield _lines(text, start, at, is_open=True)


def _lines(text: str, start: int, end: int, is_open: bool = False) -> StatementLines:
    own = text[start:end]
    return StatementLines(start, end, len(own) - len(own.lstrip()), own, is_open)


def _left(text: str, mistake: Diagnostic) -> StatementLines | None:
    """The statement that a mistake is in: of a missing block the one that opens it."""
    assert mistake.span is not None
    start = mistake.span.start
    before = [lines for lines in statements(text) if lines.start <= start]
    is_behind = isinstance(mistake, MissingBlock) or (len(before) > 1 and before[-2].is_open)
    if is_behind and len(before) > 1 and not text[before[-1].start : start].strip():
        del before[-1]  # what follows the bracket, or the `:`, is not wrong
    return before[-1] if before else None


def _had_block(text: str, opens: StatementLines) -> bool:
    """Whether a block follows a statement in the text as it was written."""
    behind = [lines for lines in statements(text) if lines.start > opens.start]
    return bool(behind) and behind[0].indent > opens.indent


def _without(text: str, left: StatementLines) -> str:
    """The text with a statement left out: in blanks, or as one that opens the same block."""
    behind = [lines for lines in statements(text) if lines.start > left.start]
    inside = [*takewhile(lambda lines: lines.indent > left.indent, behind)]
    own = left.text.rstrip()
    is_block = inside and not left.text.lstrip().startswith("either") and not any(map(_is_row, inside))
    if is_block and len(own) >= left.indent + len(INSTEAD):
        kept = " " * left.indent + (FUNCTION if own.lstrip().startswith("def ") else INSTEAD)
        return text[: left.start] + kept + _blank(own[len(kept) :]) + text[left.start + len(own) :]
    branches = takewhile(
        lambda lines: lines.indent > left.indent or (lines.indent == left.indent and BRANCH.match(lines.text)),
        behind[len(inside) :],
    )
    for lines in (left, *inside, *(branches if inside or left.opens else ())):
        text = text[: lines.start] + _blank(lines.text) + text[lines.end :]
    return text


def _is_row(lines: StatementLines) -> bool:
    """Whether it is a row of a clock, as far as its words tell."""
    return " at " in lines.text.partition("#")[0] and not BEGINS.match(lines.text)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
