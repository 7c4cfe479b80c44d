"""Colours the words of a plan, for the prompt and for `:plan`."""

import re
from collections.abc import Iterator

from rich.text import Text

from ssdsl.lang.errors.text import FREE, GIVEN
from ssdsl.lang.parser.indentation import KEYWORDS
from ssdsl.plan.plan import Phase, State

BUILTINS = frozenset((*GIVEN, *FREE))
BEHIND_DOT = frozenset((*map(str, Phase), *map(str, State)))
PIECE = re.compile(
    r'(?P<comment>#.*)|(?P<string>"[^"]*"?)|(?P<number>\b[0-9]+(\.[0-9]+)?)|(?P<sign>->|\.\.)'
    r"|(?P<attribute>(?<=\.)[A-Za-z_]\w*)|(?P<word>[A-Za-z_]\w*)|(?P<command>^:\S*)"
)
STYLES = {  # the style for rich, and for the prompt
    "comment": ("bright_black", "fg:ansibrightblack"),
    "string": ("green", "fg:ansigreen"),
    "number": ("cyan", "fg:ansicyan"),
    "sign": ("bold", "bold"),
    "keyword": ("bold blue", "bold fg:ansiblue"),
    "builtin": ("magenta", "fg:ansimagenta"),
    "command": ("bold yellow", "bold fg:ansiyellow"),
    "": ("", ""),
}


def pieces(line: str) -> Iterator[tuple[str, str]]:
    """The pieces of a line: the kind (a key of `STYLES`) and the text of each."""
    at = 0
    for found in PIECE.finditer(line):
        yield "", line[at : found.start()]
        yield _kind(found.lastgroup or "", found[0]), found[0]
        at = found.end()
    yield "", line[at:]


def _kind(group: str, text: str) -> str:
    if group == "word":
        return "keyword" if text in KEYWORDS else "builtin" if text in BUILTINS else ""
    if group == "attribute":
        return "builtin" if text in BEHIND_DOT else ""
    return group


def coloured(text: str) -> Text:
    """A plan with colours, for rich."""
    lines = (Text.assemble(*((piece, STYLES[kind][0]) for kind, piece in pieces(line))) for line in text.split("\n"))
    return Text("\n").join(lines)
