"""A view: named columns and rows of plain values, shown as a table or as JSON."""

import re
import textwrap
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ssdsl.model.graph import ROOT
from ssdsl.record import Record

GAP = 2  # between columns
NARROWEST = 12  # of a word that may be broken
PIECE = re.compile(r"(?=[. ])")
BLANK = re.compile(r"\s+")
OF_ROOT = re.compile(rf"(?<!\S){re.escape(ROOT)}(?=(?:\[[^\]]*\])? \w)")
INSIDE = re.compile(r"(?<=[_=,/])(?=.)")
Value = str | int | float | None


class ColumnKind(StrEnum):
    """The kind of a column's values, which says how a table formats them."""

    TEXT = "text"
    PATH = "path"  # broken at its dots
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    SHARE = "share"
    LOSS = "loss"
    SMALL = "small"


class Column(Record):
    """`name` heads the column. `key` is its name in JSON, which is part of the interface: a new heading breaks no
    script. With `fold`, words may wrap. If a table is too wide, the columns with the highest `drop` are left out
    first. A table writes texts as `spell` does; in JSON they are as they are."""

    name: str
    kind: ColumnKind = ColumnKind.TEXT
    style: str = ""
    fold: bool = False
    key: str = ""
    drop: int = 0
    spell: Callable[[str], str] = str

    @property
    def json_key(self) -> str:
        """The key, or else the name with `_` for spaces."""
        return self.key or self.name.replace(" ", "_")


class View(Record):
    """One table; `notes` are lines below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()


def table(view: View, width: int = 120) -> RenderableType:
    """The view for a terminal of this width. If the columns do not fit side by side, each row becomes lines.

    A table without rows is its title and notes.
    """
    title, notes = Text(view.title, "bold"), [Text(note) for note in view.notes]
    if not view.rows:
        return Group(title, *notes, Text())
    cells = spelled(view)
    kept, least = _kept(view.columns, cells, width)
    if _free(kept, least, width) < 0:
        return Group(title, *_records(view.columns, cells, width), *notes, Text())
    widths = _grown(view.columns, cells, kept, least, width)
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at in kept:
        column = view.columns[at]
        justify: Any = "left" if column.kind in (ColumnKind.TEXT, ColumnKind.PATH) else "right"
        heading = "\n".join(textwrap.wrap(column.name, widths[at]))
        result.add_column(heading, justify=justify, style=column.style, overflow="fold", width=widths[at])
    for row in cells:
        result.add_row(*(Text(_wrapped(view.columns[at], row[at], widths[at])) for at in kept))
    if len(kept) < len(view.columns):
        dropped = ", ".join(c.name for at, c in enumerate(view.columns) if at not in kept)
        notes.append(Text(f"too narrow for: {dropped}; a wider terminal or --json shows all"))
    return Group(title, result, *notes, Text())


def _kept(columns: tuple[Column, ...], cells: list[list[str]], width: int) -> tuple[list[int], list[int]]:
    """The columns that are shown, and the least width of each column."""
    least = [_least(c, [row[at] for row in cells]) for at, c in enumerate(columns)]
    kept = list(range(len(columns)))
    while _free(kept, least, width) < 0 and (optional := [at for at in kept if columns[at].drop]):
        kept.remove(max(optional, key=lambda at: columns[at].drop))
    return kept, least


def _free(kept: list[int], widths: list[int], width: int) -> int:
    """The width that is left beside columns of these widths."""
    return width - sum(widths[at] for at in kept) - GAP * (len(kept) - 1)


def _grown(
    columns: tuple[Column, ...], cells: list[list[str]], kept: list[int], least: list[int], width: int
) -> dict[int, int]:
    """The width of each column: first all words become whole, columns that may not wrap first; then the lines of cells
    become long, and at last those of headings."""
    whole = {at: _least(columns[at], [row[at] for row in cells], whole=True) for at in kept}
    long = {at: max(_longest(row[at]) for row in cells) for at in kept}
    most = {at: max(len(columns[at].name), long[at]) for at in kept}
    widths = {at: least[at] for at in kept}
    left = _free(kept, least, width)
    for ends in (whole, long, most):
        while left and (growing := [at for at in kept if widths[at] < ends[at]]):
            widths[min(growing, key=lambda at: (columns[at].fold, widths[at]))] += 1
            left -= 1
    return widths


def _longest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _least(column: Column, texts: list[str], whole: bool = False) -> int:
    """The width at which a column breaks no word and no number; unless `whole`, long words may break behind `_` and the
    like."""
    words = [*column.name.split()]
    for text in texts:
        if column.kind is ColumnKind.PATH or column.fold:
            pieces = (PIECE if column.kind is ColumnKind.PATH else BLANK).split(text)
            words += pieces if whole else [part for piece in pieces for part in _parts(piece)]
        else:
            words += text.split("\n")
    return max(map(len, words), default=0)


def _wrapped(column: Column, text: str, width: int) -> str:
    if column.kind is ColumnKind.PATH:
        return broken(text, width)
    return "\n".join(_filled(line, width) for line in text.split("\n")) if column.fold else text


def _filled(text: str, width: int) -> str:
    """The text in lines of this width; a longer word is broken behind `_` and the like."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
            continue
        parts = [word] if len(word) <= width else _parts(word)
        lines.append(parts[0])
        for part in parts[1:]:
            if len(lines[-1]) + len(part) <= width:
                lines[-1] += part
            else:
                lines.append(part)
    return "\n".join(lines[1:])


def _records(columns: tuple[Column, ...], cells: list[list[str]], width: int) -> Iterator[Text]:
    """A line for each value of a row, after its column's name; empty values are left out."""
    names = max(len(c.name) for c in columns)
    for row in cells:
        yield Text("\u2500" * min(width, names + GAP))
        for column, text in zip(columns, row, strict=True):
            for n, line in enumerate(_wrapped(column, text, width - names - GAP).split("\n") if text else ()):
                yield Text.assemble(f"{'' if n else column.name:{names + GAP}}", (line, column.style))


def as_json(view: View) -> list[dict[str, Value]]:
    """The rows as objects, with their values unformatted."""
    keys = [column.json_key for column in view.columns]
    return [dict(zip(keys, row, strict=True)) for row in view.rows]


def spelled(view: View) -> list[list[str]]:
    """The rows as a table writes them: the texts of their values, empty for unknown ones."""
    return [[_text(c, v) for c, v in zip(view.columns, row, strict=True)] for row in view.rows]


def _text(column: Column, value: Value) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return FORMATS[column.kind](value)
    return with_root(column.spell(value)) if column.kind is ColumnKind.PATH else column.spell(value)


def with_root(operator: str) -> str:
    """An operator with a word for the model's path, where its own forward calls it: a plan writes `model["."]`.

    >>> with_root(". sum"), with_root(".[m = 1] sum"), with_root("h.0 add")
    ('(model) sum', '(model)[m = 1] sum', 'h.0 add')
    """
    return OF_ROOT.sub("(model)", operator)


def broken(path: str, longest: int) -> str:
    """The path in lines of at most this length, broken in front of dots and of the space before a kind.

    A name that is longer than a line is broken behind `_` and the like.
    """
    lines = [""]
    for piece in PIECE.split(path):
        for part in [piece] if len(piece.lstrip(" ")) <= longest else _parts(piece):
            if lines[-1] and len(lines[-1]) + len(part) > longest:
                lines.append("")
            lines[-1] += part if lines[-1] else part.lstrip(" ")
    return "\n".join(lines)


def _parts(word: str) -> list[str]:
    """The pieces between which a word may be broken: a short word is one piece, a long one breaks behind `_`, `=`, `,`
    and `/`."""
    return [word] if len(word.strip()) <= NARROWEST else INSIDE.split(word)


def size(value: float) -> str:
    """Bytes with three digits: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # it is rounded to three digits
            return f"{value:.0f} {unit}" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1000
    return f"{_three(value)} TB"


def money(value: float, currency: str) -> str:
    """An amount of money.

    >>> money(0.01234, "USD"), money(12.3, "EUR")
    ('0.0123 USD', '12.3 EUR')
    """
    return f"{value:,.3g} {currency}" if value < 1000 else f"{value:,.0f} {currency}"


def seconds(value: float) -> str:
    """A duration with three digits, or in whole seconds: 2.5 s, 1,110 s. What is less than a nanosecond is rounding."""
    return f"{_three(value)} s" if value >= 0.9995 else f"{_three(round(value * 1e3, 6))} ms"


def _three(value: float) -> str:
    """A number with three digits, and without an exponent if it is large."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


FORMATS: dict[ColumnKind, Callable[[float], str]] = {
    ColumnKind.TEXT: str,
    ColumnKind.PATH: str,
    ColumnKind.COUNT: lambda v: f"{v:,}",
    ColumnKind.BYTES: size,
    ColumnKind.SECONDS: seconds,
    ColumnKind.SHARE: lambda v: f"{v:.1%}",
    ColumnKind.LOSS: lambda v: f"{v:.6f}",
    ColumnKind.SMALL: lambda v: f"{v:.1e}",
}
