"""The place in the grammar where a text ends: the tokens of its last statement, and the tokens that may follow."""

from collections.abc import Iterator
from dataclasses import dataclass

from lark import Token, UnexpectedInput

from ssdsl.lang.parse import grammar_parser
from ssdsl.lang.parser.indentation import PREFIX, Indentation
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

LINE_ENDS = ("_NL", "_INDENT", "_DEDENT")


class Position(Record):
    """`line` has the tokens of the statement so far, also those on earlier lines of an open bracket; `accepted` the
    types of tokens that may follow."""

    text: str
    line: tuple[Token, ...]
    accepted: frozenset[str]

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the tokens of the line."""
        return tuple(token.type for token in self.line)

    def between(self, first: int, last: int) -> str:
        """The text of the tokens from `first` up to `last`, without that one."""
        tokens = self.line[first:last]
        if not tokens:
            return ""
        return self.text[(tokens[0].start_pos or 0) - len(PREFIX) : (tokens[-1].end_pos or 0) - len(PREFIX)]


@dataclass(slots=True)
class _Stream:
    """The lexer's tokens, and whether they have ended."""

    text: str
    ended: bool = False

    def __iter__(self) -> Iterator[Token]:
        yield from grammar_parser().lex(PREFIX + self.text)
        self.ended = True


def position(text: str) -> Position | None:
    """The place where this text ends; None if it has a mistake before."""
    layout, stream = Indentation(Source("", text)), _Stream(text)
    parser = grammar_parser().parse_interactive()
    try:
        for token in layout.process(iter(stream)):
            if stream.ended:  # the tokens that follow would close the blocks
                break
            parser.feed_token(token)
    except UnexpectedInput:
        return None
    except PlanError:
        if not stream.ended:  # at the end the mistake is an open bracket, which is allowed
            return None
    accepted = parser.accepts()  # type: ignore[no-untyped-call]
    if accepted == {"_INDENT"}:
        parser.feed_token(Token("_INDENT", ""))
        accepted = parser.accepts()  # type: ignore[no-untyped-call]
    start = next((i + 1 for i, t in reversed(list(enumerate(layout.tokens))) if t.type in LINE_ENDS), 0)
    return Position(text, tuple(layout.tokens[start:]), frozenset(accepted))
