"""Turns the parser's complaint about a text into a diagnostic in the user's words."""

import re
from itertools import pairwise

from lark import Token

from ssdsl.lang.errors.text import (
    FOREIGN,
    LoneOr,
    MissingBlock,
    MissingLet,
    ReservedWord,
    UnclosedString,
    UnexpectedIndentation,
    UnexpectedWord,
    UnknownCharacter,
    UnknownStatement,
)
from ssdsl.lang.nodes import STATEMENTS
from ssdsl.lang.parser.indentation import KEYWORDS, Indentation, span_of
from ssdsl.lang.suggest import joined, nearest
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source, Span

WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "DOT": "`.`",
    "ARROW": "`->`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "_NL": "the end of the line",
    "_INDENT": "an indented block",
}
EXPRESSION = {"NAME", "NUMBER", "STRING", "LPAR", "LSQB", "MINUS", "NOT"}
UNQUOTED = re.compile(r"[\w.*-]+(?=\s)")  # what may be meant as the name of a dimension
RUN = re.compile(r"[\w.*]+")  # a path with the numbers or the stars of layers, which has to be in quotes
BEHIND = (
    "fwd",
    "bwd",
    "dgrad",
    "wgrad",
    "weights",
    "grads",
    "optimizer",
    "gathers",
    "activations",
)  # words that stand behind a path
GOES_ON = {"PLUS", "MINUS", "TIMES", "STAR", "RANGE", "COMPARE", "AND", "OR", "IF", "DOT", "LPAR", "LSQB"}


def explain_character(source: Source, at: int) -> Diagnostic:
    """The diagnostic of a character at which no token begins."""
    character = source.text[at]
    if character == '"':
        end = source.text.find("\n", at)
        return UnclosedString(Span(source, at, end if end >= 0 else len(source.text)))
    return UnknownCharacter(Span(source, at, at + 1), character)


def explain_token(layout: Indentation, token: Token, accepted: set[str]) -> Diagnostic:
    """The diagnostic of a token that the grammar does not accept at its place."""
    place = span_of(layout.source, token)
    if token.type == "_INDENT":
        return UnexpectedIndentation(place)
    if accepted == {"_INDENT"} or (accepted == {"_NL"} and _last(layout, token).type == "COLON"):
        return MissingBlock(place)
    line = _line(layout, token)
    if token.type == "OR" and len(line) == 1:
        return LoneOr(place)
    if (found := _first_word(layout, line)) is not None:
        return found
    if token.value in KEYWORDS and "NAME" in accepted and not accepted & {"IF", "FOR"}:
        return ReservedWord(place, token.value)
    keywords = tuple(t.lower() for t in sorted(accepted) if t.lower() in KEYWORDS)
    has_slashes = any(t.value == "//" for t in line)
    first = str(line[0]) if line else ""
    said = _expected(accepted), _found(token), str(token)
    return UnexpectedWord(place, *said, keywords, first, has_slashes, _unquoted(layout, line), _path(layout, token))


def _last(layout: Indentation, token: Token) -> Token:
    before = [t for t in layout.tokens[-2:] if t is not token]
    return before[-1] if before else token


def _line(layout: Indentation, token: Token) -> list[Token]:
    """The tokens of this token's logical line, up to this token."""
    line: list[Token] = []
    for t in reversed(layout.tokens):
        if t.type in ("_NL", "_INDENT", "_DEDENT") and t is not token:
            break
        line.append(t)
    return line[::-1]


def _first_word(layout: Indentation, line: list[Token]) -> Diagnostic | None:
    """The diagnostic of a line that begins with a name and is no call: a misspelt statement, or a name bound without
    `let`."""
    if len(line) < 2 or line[0].type != "NAME" or str(line[0]) in STATEMENTS:
        return None
    first, token = line[0], line[-1]
    place = span_of(layout.source, first)
    if token.type == "EQUAL" and len(line) == 2:
        return MissingLet(place, str(first))
    is_like_statement = str(first) in FOREIGN or nearest(str(first), STATEMENTS)
    if not is_like_statement and token.type not in EXPRESSION | {k.upper() for k in KEYWORDS}:
        return None
    return UnknownStatement(place, str(first))


def _unquoted(layout: Indentation, line: list[Token]) -> str:
    """The name of a dimension in a `split` without the quotes that it needs, if the last token belongs to one; or an
    empty text."""
    by = next((k for k, token in enumerate(line) if token.type == "BY"), len(line))
    name = line[by + 1 :]
    if not name or str(line[0]) != "split" or any(a.end_pos != b.start_pos for a, b in pairwise(name)):
        return ""
    found = UNQUOTED.match(layout.source.text, span_of(layout.source, name[0]).start)
    return "" if found is None or found[0] == str(name[0]) else found[0]


def _path(layout: Indentation, token: Token) -> str:
    """The selection by a path in quotes that was probably meant, where a number or a star stands behind a dot; or an
    empty text."""
    if token.type not in ("STAR", "NUMBER") or _last(layout, token).type != "DOT":
        return ""
    at = span_of(layout.source, token).start
    run = next(m[0] for m in RUN.finditer(layout.source.text) if m.end() > at)
    base, *path = run.split(".")
    if not base or not path:  # behind a bracket or a space
        return ""
    end = f".{path.pop()}" if path[-1] in BEHIND else ""
    if base != "model" and len(path) == 1 and path[0].isdecimal():
        return f"{base}[{path[0]}]{end}"  # an item of a list
    return f'{base}["{".".join(path)}"]{end}'


def _expected(accepted: set[str]) -> str:
    """The accepted tokens in words: those that must come, rather than those with which the line may go on."""
    words = {k.upper() for k in KEYWORDS} & accepted
    if accepted >= EXPRESSION - {"MINUS", "NOT"}:
        return "a value"
    rest = accepted - GOES_ON - {"IF", "FOR", "AND", "OR", "NOT"}
    if "_NL" in rest and len(rest) > 1:
        rest -= {"_NL"} if words - {"IF", "FOR", "AND", "OR"} else {"COMMA"}
    named = [WORDS.get(t, f"`{t.lower()}`") for t in sorted(rest or accepted)]
    return joined(named, "or") or "nothing more"


def _found(token: Token) -> str:
    if token.type in ("_NL", "$END"):
        return "the end of the line"
    return "the end of the block" if token.type == "_DEDENT" else f"`{str(token)[:60]}`"
