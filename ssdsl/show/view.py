"""A view: named columns and rows of plain values, which becomes a table or JSON."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # between columns
NARROWEST = 12  # of a column whose words wrap
Value = str | int | float | None


class Kind(StrEnum):
    """What a column's values are, which decides how a table writes them."""

    TEXT = "text"
    PATH = "path"  # broken at its dots
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    SHARE = "share"
    LOSS = "loss"
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class Column:
    """`name` heads the column, `key` is its name in JSON: part of the interface, so that a new heading breaks no
    script. `fold`: its words may wrap. Where a table is too wide, the column of the highest `drop` goes first."""

    name: str
    kind: Kind = Kind.TEXT
    style: str = ""
    fold: bool = False
    key: str = ""
    drop: int = 0

    @property
    def json_key(self) -> str:
        """The name with `_` for spaces, unless the column says another."""
        return self.key or self.name.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class View:
    """One table; `notes` are lines below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = field(default=())


def table(view: View, width: int = 120) -> RenderableType:
    """The view for a terminal of this width. A table without rows is its title and notes."""
    title, notes = Text(view.title, "bold"), [Text(note) for note in view.notes]
    if not view.rows:
        return Group(title, *notes, Text())
    cells = [[_text(c.kind, v) for c, v in zip(view.columns, row, strict=True)] for row in view.rows]
    kept, widths = _fitted(view.columns, cells, width)
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at, size_ in zip(kept, widths, strict=True):
        column = view.columns[at]
        justify: Any = "left" if column.kind in (Kind.TEXT, Kind.PATH) else "right"
        heading = "\n".join(textwrap.wrap(column.name, size_))
        result.add_column(heading, justify=justify, style=column.style, overflow="fold", width=size_)
    for row in cells:
        result.add_row(*(Text(_wrapped(view.columns[at], row[at], n)) for at, n in zip(kept, widths, strict=True)))
    if len(kept) < len(view.columns):
        dropped = ", ".join(c.name for at, c in enumerate(view.columns) if at not in kept)
        notes.append(Text(f"too narrow for: {dropped}; a wider terminal or --json shows all"))
    return Group(title, result, *notes, Text())


def _fitted(columns: tuple[Column, ...], cells: list[list[str]], width: int) -> tuple[list[int], list[int]]:
    """The columns that are shown, and how wide each is: what fits, then the rest to those that wrap."""
    most = [max(len(c.name), *(len(row[at]) for row in cells)) for at, c in enumerate(columns)]
    least = [_least(c, [row[at] for row in cells]) for at, c in enumerate(columns)]
    kept = list(range(len(columns)))

    def free() -> int:
        return width - sum(least[at] for at in kept) - GAP * (len(kept) - 1)

    while free() < 0 and (optional := [at for at in kept if columns[at].drop]):
        kept.remove(max(optional, key=lambda at: columns[at].drop))
    while free() < 0 and max(least[at] for at in kept) > NARROWEST:  # words are broken before a column is lost
        least[max(kept, key=lambda at: least[at])] -= 1
    widths = {at: least[at] for at in kept}
    left = max(0, free())
    while left and (growing := [at for at in kept if widths[at] < most[at]]):
        widths[min(growing, key=lambda at: (columns[at].fold, widths[at]))] += 1
        left -= 1
    return kept, [widths[at] for at in kept]


def _least(column: Column, texts: list[str]) -> int:
    """The width at which a column breaks no number, and no word between two dots."""
    heading = max(map(len, column.name.split()), default=0)
    if column.kind is Kind.PATH:
        pieces = [len(piece) for text in texts for piece in PIECE.split(text)]
        return max(heading, *pieces)
    if column.fold:
        longest = max((len(word) for text in texts for word in text.split()), default=0)
        return max(heading, min(longest, NARROWEST))
    return max([heading, *(len(line) for text in texts for line in text.split("\n"))])


def _wrapped(column: Column, text: str, width: int) -> str:
    return broken(text, width) if column.kind is Kind.PATH else text


def as_json(view: View) -> list[dict[str, Value]]:
    """The rows with their values as they are."""
    keys = [column.json_key for column in view.columns]
    return [dict(zip(keys, row, strict=True)) for row in view.rows]


def _text(kind: Kind, value: Value) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else FORMATS[kind](value)


PIECE = re.compile(r"(?=[. ])")


def broken(path: str, longest: int) -> str:
    """The path in lines of at most this length where its dots, and the space before a kind, allow it."""
    lines = [""]
    for piece in PIECE.split(path):
        if lines[-1] and len(lines[-1]) + len(piece) > longest:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip(" ")
    return "\n".join(lines)


def size(value: float) -> str:
    """Bytes with three digits: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def seconds(value: float) -> str:
    """A duration with three digits."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


FORMATS: dict[Kind, Callable[[float], str]] = {
    Kind.TEXT: str,
    Kind.PATH: str,
    Kind.COUNT: lambda v: f"{v:,}",
    Kind.BYTES: size,
    Kind.SECONDS: seconds,
    Kind.SHARE: lambda v: f"{v:.1%}",
    Kind.LOSS: lambda v: f"{v:.6f}",
    Kind.SMALL: lambda v: f"{v:.1e}",
}
