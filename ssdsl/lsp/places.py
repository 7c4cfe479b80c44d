"""Places of a text as the protocol counts them: lines from 0, and columns in UTF-16 units."""

import re
from typing import Any

from lsprotocol import types

from ssdsl.text.source import Source, Span


def offset_of(source: Source, position: types.Position) -> int:
    """The offset of a position, at most that of the line's end."""
    lines = source.text.split("\n")
    if position.line >= len(lines):
        return len(source.text)
    line, units, at = lines[position.line], position.character, 0
    while at < len(line) and units > 0:
        units -= 2 if ord(line[at]) > 0xFFFF else 1
        at += 1
    return sum(len(before) + 1 for before in lines[: position.line]) + at


def position_of(source: Source, offset: int) -> types.Position:
    """The position of an offset."""
    before = source.text[:offset]
    start = before.rfind("\n") + 1
    return types.Position(before.count("\n"), _units(before[start:]))


def range_of(span: Span) -> types.Range:
    """The range of a span of a text."""
    return types.Range(position_of(span.source, span.start), position_of(span.source, span.end))


def whole(source: Source) -> types.Range:
    """The range of all of a text."""
    return range_of(Span(source, 0, len(source.text)))


def range_of_json(source: Source, place: dict[str, Any]) -> types.Range:
    """The range of a place as `text/render.py` writes it. What is in no text, or in another, is at the option of the
    header that it is about, or else at the first line."""
    if place["line"] is None or place["file"] != source.name:
        file = place.get("file")
        if isinstance(file, str) and (found := re.search(rf"(?m)^#.*?({re.escape(file)}[= ]\S+)", source.text)):
            return range_of(Span(source, found.start(1), found.end(1)))
        return types.Range(types.Position(0, 0), types.Position(0, _units(source.line(1))))
    ends = ((place["line"], place["column"]), (place["end"]["line"], place["end"]["column"]))
    start, end = (types.Position(n - 1, _units(source.line(n)[: column - 1])) for n, column in ends)
    return types.Range(start, end)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
