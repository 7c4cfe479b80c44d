"""A view: named columns and rows of plain values, which becomes a table or JSON."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

NARROWEST_PATH = 16
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
    """`name` heads the column, and is its key in JSON with `_` for spaces."""

    name: str
    kind: Kind = Kind.TEXT
    style: str = ""
    fold: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """One table; `notes` are lines below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = field(default=())


def table(view: View, width: int = 120) -> RenderableType:
    """The view for a terminal of this width."""
    result = Table(title=view.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in view.columns:
        justify: Any = "left" if column.kind in (Kind.TEXT, Kind.PATH) else "right"
        wraps = column.fold or column.kind is Kind.PATH
        least = NARROWEST_PATH if column.kind is Kind.PATH else 0 if column.fold else len(column.name)
        result.add_column(
            column.name, justify=justify, style=column.style, overflow="fold", no_wrap=not wraps, min_width=least
        )
    for row in view.rows:
        result.add_row(*(Text(_text(c.kind, v, max(24, width // 4))) for c, v in zip(view.columns, row, strict=True)))
    return Group(result, *(Text(note) for note in view.notes), *([Text()] if view.notes else []))


def as_json(view: View) -> list[dict[str, Value]]:
    """The rows with their values as they are."""
    keys = [column.name.replace(" ", "_") for column in view.columns]
    return [dict(zip(keys, row, strict=True)) for row in view.rows]


def _text(kind: Kind, value: Value, longest: int) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return broken(value, longest) if kind is Kind.PATH else value
    return FORMATS[kind](value)


def broken(path: str, longest: int) -> str:
    """The path in lines of at most this length where its dots allow it."""
    lines = [""]
    for piece in re.split(r"(?=[. _])", path):
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
