"""What each word of a text is, as the protocol's semantic tokens."""

from collections.abc import Iterator, Sequence

from lsprotocol import types

from ssdsl.assist.highlight import pieces
from ssdsl.assist.names import NameKind, Occurrence
from ssdsl.lsp.places import position_of
from ssdsl.text.source import Source

TYPES = (
    "comment",
    "string",
    "number",
    "operator",
    "keyword",
    "macro",
    "parameter",
    "variable",
    "function",
    "class",
    "property",
)
LEGEND = types.SemanticTokensLegend([*TYPES], ["declaration"])
LEXICAL = {"comment": "comment", "string": "string", "number": "number", "sign": "operator", "keyword": "keyword"}
OF_NAMES = {
    NameKind.PARAM: "parameter",
    NameKind.ARGUMENT: "parameter",
    NameKind.VALUE: "variable",
    NameKind.MESH: "class",
    NameKind.FUNCTION: "function",
    NameKind.INDEX: "property",
    NameKind.DIMENSION: "property",
}


def tokens(source: Source, names: Sequence[Occurrence]) -> list[int]:
    """Five numbers for each token: lines and columns since the one before, length, type, and whether it is where a name
    gets its meaning."""
    known = {o.span.start: o for o in names}
    data: list[int] = []
    line, column = 0, 0
    for start, end, kind in sorted(_all(source, known)):
        at, behind = position_of(source, start), position_of(source, end)
        one = known.get(start)
        data += (
            at.line - line,
            at.character - (column if at.line == line else 0),
            behind.character - at.character,
            TYPES.index(kind),
            int(one is not None and one.is_binding),
        )
        line, column = at.line, at.character
    return data


def _all(source: Source, names: dict[int, Occurrence]) -> Iterator[tuple[int, int, str]]:
    """The words, with the place of each and its type; a name that the language gives a meaning is a macro."""
    at = 0
    for text in source.text.split("\n"):
        for kind, piece in pieces(text):
            if (one := names.get(at)) is not None and one.span.end == at + len(piece) and kind != "keyword":
                is_given = one.bound is None and kind == "builtin"
                yield at, at + len(piece), "macro" if is_given else OF_NAMES[one.kind]
            elif kind in LEXICAL:
                yield at, at + len(piece), LEXICAL[kind]
            elif kind == "builtin":
                yield at, at + len(piece), "macro"
            elif piece:
                yield from _inside(at, piece, names)
            at += len(piece)
        at += 1


def _inside(at: int, piece: str, names: dict[int, Occurrence]) -> Iterator[tuple[int, int, str]]:
    """The names in a piece that has signs and blanks as well."""
    for start in range(at, at + len(piece)):
        if (one := names.get(start)) is not None and one.span.end <= at + len(piece):
            yield start, one.span.end, OF_NAMES[one.kind]
