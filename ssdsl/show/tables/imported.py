"""`ssdsl import`: what became of everything that a source says."""

from collections.abc import Iterator
from typing import Any

from ssdsl.importers.imported import Imported, Item
from ssdsl.show.view import Column, ColumnKind, View

WRITTEN = Column("written", style="bold cyan", fold=True)
LINE = Column("line", ColumnKind.COUNT, drop=1)
LISTS = (
    ("said", "said: {}", Column("here", fold=True, key="becomes")),
    ("silent", "nothing to say here: {}", Column("because", fold=True, key="becomes")),
    ("refused", "refused, or ignored where it comes from: {}", Column("because", fold=True, key="becomes")),
)


def imported_views(found: Imported) -> Iterator[View]:
    """Yields the three lists."""
    for name, title, column in LISTS:
        items: tuple[Item, ...] = getattr(found, name)
        lines = any(item.line for item in items)
        columns = (WRITTEN, *([LINE] if lines else []), column)
        rows = tuple((i.written, *([i.line or None] if lines else []), i.becomes) for i in items)
        yield View(title.format(len(items)), columns, rows)


def imported_json(found: Imported) -> dict[str, Any]:
    """The plan and the lists as JSON."""
    return {
        "version": 1,
        "kind": found.kind,
        "model": found.model,
        "plan" if found.is_plan else "costs": found.text,
        "files": dict(found.files),
        **{name: [_item(item) for item in getattr(found, name)] for name, _, _ in LISTS},
    }


def _item(item: Item) -> dict[str, Any]:
    return {"written": item.written, "becomes": item.becomes, **({"line": item.line} if item.line else {})}
