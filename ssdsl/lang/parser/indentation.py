"""Turns the lexer's tokens into the parser's: line ends become indents and dedents; brackets and nesting are checked.

Nesting is limited by a bound on the depth of the syntax tree, so that later passes may recurse: every operator and
every closed bracket adds a level until the next comma, and an open bracket keeps the levels before it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lark import Token

from ssdsl.lang.assets import grammar_text
from ssdsl.lang.errors.text import (
    NestedTooDeeply,
    NumberTooLong,
    TabInIndentation,
    UnalignedLine,
    UnclosedBracket,
    UnmatchedBracket,
)
from ssdsl.lang.nodes import STATEMENTS
from ssdsl.lang.suggest import joined
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

CLOSING = {"(": ")", "[": "]"}
OPERATORS = {"OR", "AND", "NOT", "COMPARE", "RANGE", "PLUS", "MINUS", "TIMES", "STAR", "DOT", "IF"}
KEYWORDS = frozenset(re.findall(r'"([a-z]+)"', grammar_text()))  # the words that the grammar quotes
NEVER_IN_BRACKETS = {s.upper() for s in STATEMENTS} - {"FOR", "IF"}
DEEPEST = 100
DEEPEST_BLOCK = 20
MOST_DIGITS = 18
PREFIX = "\n"  # put before the text, so that the first line is indented like the others


def span_of(source: Source, token: Token) -> Span:
    """The span of a token in the source; the end of the text for a token without a position."""
    last = len(source.text)
    if token.start_pos is None or token.end_pos is None:
        return Span(source, last, last)
    return Span(source, min(token.start_pos - len(PREFIX), last), min(token.end_pos - len(PREFIX), last))


@dataclass(slots=True)
class Indentation:
    """The state of one pass over the tokens of one source."""

    source: Source
    opened: list[Token] = field(default_factory=list)
    levels: list[int] = field(default_factory=lambda: [0])  # the operators since the last comma, for each open bracket
    depth: int = 0  # the sum of `levels`
    columns: list[int] = field(default_factory=lambda: [0])
    tokens: list[Token] = field(default_factory=list)  # all so far, to explain a syntax error
    end: int = 0

    def __post_init__(self) -> None:
        self.end = len(self.source.text.rstrip())

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        for token in stream:
            for out in self._line_end(token) if token.type == "_NL" else self._inside(token):
                self.tokens.append(out)
                yield out
        if self.opened:
            self._fail_unclosed()
        for _ in self.columns[1:]:
            yield self._dedent()

    def _dedent(self) -> Token:
        """The token that ends a block, placed where its last statement ends."""
        last = next(t for t in reversed(self.tokens) if t.type not in ("_NL", "_DEDENT"))
        return Token.new_borrow_pos("_DEDENT", "", Token("_NL", "", last.end_pos, end_pos=last.end_pos))

    def _inside(self, token: Token) -> Iterator[Token]:
        previous = self.tokens[-1] if self.tokens else None
        if token.value in KEYWORDS and previous is not None and previous.type == "DOT":
            token = Token.new_borrow_pos("NAME", token.value, token)
        if token.type == "NUMBER" and len(token) > MOST_DIGITS:
            raise PlanError(NumberTooLong(span_of(self.source, token), len(token), MOST_DIGITS))
        if self.opened and token.type in NEVER_IN_BRACKETS:
            self._fail_unclosed()
        self._measure(token)
        yield token

    def _measure(self, token: Token) -> None:
        if token.value in CLOSING:
            self.opened.append(token)
            self.levels.append(0)
            self._deepen(token)
        elif token.value in CLOSING.values():
            self._close(token)
        elif token.type == "COMMA":
            self.depth -= self.levels[-1]
            self.levels[-1] = 0
        elif token.type in OPERATORS:
            self._deepen(token)

    def _deepen(self, token: Token) -> None:
        self.levels[-1] += 1
        self.depth += 1
        if self.depth > DEEPEST:
            raise PlanError(NestedTooDeeply(span_of(self.source, token), DEEPEST))

    def _close(self, token: Token) -> None:
        opening = self.opened.pop() if self.opened else None
        if opening is None or CLOSING[opening.value] != token.value:
            closing = CLOSING[opening.value] if opening else None
            place = span_of(self.source, opening) if opening else None
            raise PlanError(UnmatchedBracket(span_of(self.source, token), token.value, closing, place))
        self.depth -= self.levels.pop()
        self._deepen(token)

    def _line_end(self, token: Token) -> Iterator[Token]:
        if self.opened:
            return
        self.levels, self.depth = [0], 0
        if self.tokens and self.tokens[-1].type not in ("_NL", "_INDENT", "_DEDENT"):
            yield token
        indentation = token.value.rsplit("\n", 1)[1]
        place = span_of(self.source, token)
        if place.end >= self.end or indentation.lstrip().startswith("#"):
            return
        place = Span(self.source, place.end - len(indentation), place.end)
        if "\t" in indentation:
            raise PlanError(TabInIndentation(place))
        yield from self._indent(len(indentation), token, place)

    def _indent(self, column: int, token: Token, place: Span) -> Iterator[Token]:
        if column > self.columns[-1]:
            self.columns.append(column)
            if len(self.columns) > DEEPEST_BLOCK:
                raise PlanError(NestedTooDeeply(place, DEEPEST_BLOCK))
            yield Token("_INDENT", "", (token.end_pos or 0) - column, end_pos=token.end_pos)
        while column < self.columns[-1]:
            self.columns.pop()
            if column > self.columns[-1]:
                known = joined([str(c) for c in [*self.columns, self.columns[-1] + 4]], "or")
                raise PlanError(UnalignedLine(place, column, known))
            yield self._dedent()

    def _fail_unclosed(self) -> None:
        opening = self.opened[-1]
        raise PlanError(UnclosedBracket(span_of(self.source, opening), opening.value, CLOSING[opening.value]))
