"""The words of a plan in colours: which piece of a line is what, for the prompt and for `:plan`."""

import re
from collections.abc import Iterator

from rich.text import Text

from ssdsl.lang.parser.layout import KEYWORDS
from ssdsl.plan.plan import Phase, State

BUILTINS = frozenset(("model", "balance", "cut", "each", "len", "min", "max", "none", "any", "true", "false"))
BEHIND_DOT = frozenset((*map(str, Phase), *map(str, State)))
PIECE = re.compile(
    r'(?P<comment>#.*)|(?P<string>"[^"]*"?)|(?P<number>\b[0-9]+(\.[0-9]+)?)|(?P<sign>->|\.\.)'
    r"|(?P<attribute>(?<=\.)[A-Za-z_]\w*)|(?P<word>[A-Za-z_]\w*)|(?P<command>^:\S*)"
)
STYLES = {  # of rich, and of the prompt
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
    """The kind and the text of each piece of a line, a key of `STYLES`."""
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
    """A plan for a terminal that rich writes to."""
    lines = (Text.assemble(*((piece, STYLES[kind][0]) for kind, piece in pieces(line))) for line in text.split("\n"))
    return Text("\n").join(lines)
