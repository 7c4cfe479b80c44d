"""`ssdsl cache`: the cached graphs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ssdsl.lang.suggest import counted
from ssdsl.model.cache.entries import Entry
from ssdsl.show.view import Column, ColumnKind, View, size

COLUMNS = (
    Column("model", ColumnKind.PATH, "bold cyan"),
    Column("options", fold=True),
    Column("size", ColumnKind.BYTES, key="size_bytes"),
    Column("last used"),
    Column("from", ColumnKind.PATH, key="folder"),
)
# options and their usual values: a row shows those with other values
SHOWN = {"seed": 0, "generator": "hash", "meta": False, "precision": None, "trains": False}


def cache_view(found: Sequence[Entry], most: int) -> View:
    """A row for each cached graph."""
    total = sum(entry.size_bytes for entry in found)
    title = f"{counted(len(found), 'graph')}, {size(total)} of at most {size(most)}"
    return View(title, COLUMNS, tuple(map(_row, found)))


def cache_json(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """The cached graphs as JSON; `used` is in seconds since 1970."""
    return [
        {
            "model": entry.model,
            **{name: entry.asked.get(name) for name in (*SHOWN, "folder")},
            "size_bytes": entry.size_bytes,
            "used": entry.used,
            "file": str(entry.path),
        }
        for entry in found
    ]


def _row(entry: Entry) -> tuple[str | int, ...]:
    asked = {name: entry.asked.get(name) for name, usual in SHOWN.items() if entry.asked.get(name) != usual}
    words = ", ".join(name if value is True else f"{name}={value}" for name, value in asked.items())
    used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
    return entry.model, words, entry.size_bytes, used, str(entry.asked.get("folder", ""))
