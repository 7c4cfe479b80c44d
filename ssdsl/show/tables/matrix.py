"""Views of `ssdsl matrix`, a table and JSON: what became of plans under settings, on models."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ssdsl.lang.suggest import counted, joined
from ssdsl.matrix.cell import Cell, CellOutcome, Worst
from ssdsl.show.tables.sweep import reasons
from ssdsl.show.view import Column, ColumnKind, Value, View

VERSION = 1  # of the keys of `matrix_json`
MODEL = Column("model", fold=True)
COLUMNS = (
    Column("plan", style="bold cyan"),
    Column("setting", style="green"),
    Column("devices", ColumnKind.COUNT),
    Column("work", ColumnKind.SHARE),
    Column("outcome", style="bold"),
)
WARNINGS = Column("warnings", fold=True)
FIGURES = Column("worst error", ColumnKind.SMALL), Column("of allowed", ColumnKind.SHARE)


def matrix_view(cells: tuple[Cell, ...]) -> View:
    """The table: a row for each cell, in the order given. It has a column of models where there are several, one of
    warnings where there are some, and figures where something was trained."""
    models = dict.fromkeys(cell.model for cell in cells)
    title = f"plans on {cells[0].model}" if len(models) == 1 else "plans on models"
    columns: tuple[Column, ...] = (*((MODEL,) if len(models) > 1 else ()), *COLUMNS)
    columns += (WARNINGS,) if any(cell.warnings for cell in cells) else ()
    columns += FIGURES if any(cell.worst is not None for cell in cells) else ()
    keys = [column.json_key for column in columns]
    rows = tuple(tuple(values[key] for key in keys) for values in map(_values, cells))
    return View(title, columns, rows, tuple(_notes(cells)))


def _values(cell: Cell) -> dict[str, Value]:
    """The value of each column."""
    code = f" {cell.reason.code}" if cell.reason is not None else ""
    worst = cell.worst
    return {
        "model": cell.model,
        "plan": cell.plan,
        "setting": cell.words,
        "devices": cell.devices or None,
        "work": cell.work,
        "outcome": f"{cell.outcome.upper() if cell.is_failure else cell.outcome}{code}",
        "warnings": " ".join(dict.fromkeys(d.code for d in cell.warnings)),
        "worst_error": worst.error if worst is not None else None,
        "of_allowed": worst.of_allowed if worst is not None else None,
    }


def _notes(cells: tuple[Cell, ...]) -> Iterator[str]:
    counts = Counter(cell.outcome for cell in cells)
    found = joined([f"{counts[outcome]} {outcome}" for outcome in CellOutcome if counts[outcome]], "and")
    yield f"{counted(len(cells), 'cell')}: {found}"
    several = len({cell.model for cell in cells}) > 1
    yield from reasons((c.reason, _words(c, several)) for c in cells if c.reason is not None)
    for code, headline in {d.code: d.headline() for cell in cells for d in cell.warnings}.items():
        yield f"warning {code}: {headline}"
    if any(cell.work is not None for cell in cells):
        yield "work: of the busiest device, of what one device multiplies in a step"
    trained = [(cell, cell.worst) for cell in cells if cell.worst is not None]
    if trained:
        cell, worst = max(trained, key=lambda pair: pair[1].of_allowed)
        yield "worst error: relative to the largest element of its tensor; none where that is rounding alone"
        where = f"{worst.what} {worst.name} ({_words(cell, several)})"
        most = f"the most is {worst.of_allowed:.1%}, in {where}"
        yield f"of allowed: of what rounding explains (ssdsl explain E0512); {most}"


def _words(cell: Cell, with_model: bool) -> str:
    return " ".join(word for word in (cell.plan, cell.words, f"on {cell.model}" if with_model else "") if word)


def matrix_json(cells: tuple[Cell, ...]) -> dict[str, Any]:
    """The matrix as JSON; docs/json.md lists the keys."""
    counts = Counter(cell.outcome for cell in cells)
    return {
        "version": VERSION,
        "counts": {outcome: counts[outcome] for outcome in CellOutcome},
        "cells": [cell_json(cell) for cell in cells],
    }


def cell_json(cell: Cell) -> dict[str, Any]:
    """A cell as JSON."""
    reason, worst = cell.reason, cell.worst
    return {
        "model": cell.model,
        "plan": cell.plan,
        "params": dict(cell.params),
        "devices": cell.devices or None,
        "work": cell.work,
        "outcome": cell.outcome,
        "proved": cell.is_proved,
        "worst": None if worst is None else {"of": worst.what, "name": worst.name, **_numbers(worst)},
        "reason": None if reason is None else {"code": reason.code, "message": reason.text(reason.title)},
        "fault": cell.fault or None,
        "warnings": [{"code": d.code, "title": d.text(d.title)} for d in cell.warnings],
        "seconds": cell.seconds,
    }


def _numbers(worst: Worst) -> dict[str, float | None]:
    """The figures of a tensor; null for what is infinite, as JSON has no such number."""
    figures = {"error": worst.error, "of_allowed": worst.of_allowed}
    return {name: None if x is None or not math.isfinite(x) else x for name, x in figures.items()}
