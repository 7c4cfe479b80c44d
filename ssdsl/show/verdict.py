"""What `ssdsl verify` ends with: how many tensors were compared, and how far they were apart."""

import math
from dataclasses import asdict
from typing import Any

from ssdsl.run.compare import Comparison
from ssdsl.show.view import Column, Kind, View

COLUMNS = (
    Column("compared", style="bold cyan"),
    Column("tensors", Kind.COUNT),
    Column("elements", Kind.COUNT),
    Column("differ", Kind.COUNT),
    Column("worst error", Kind.SMALL),
    Column("of allowed", Kind.SHARE),
    Column("in", fold=True),
)
PLURALS = {"loss": "losses", "gradient": "gradients", "weight": "weights", "buffer": "buffers"}


def verdict_view(comparisons: tuple[Comparison, ...]) -> View:
    """A row per kind of tensor, with the tensor that came closest to its tolerance, or past it."""
    kinds = dict.fromkeys(c.kind for c in comparisons)
    note = "worst error: relative to the largest element of its tensor; what is allowed and why: ssdsl explain E0512"
    return View("compared with a single device", COLUMNS, tuple(_row(k, comparisons) for k in kinds), (note,))


def verdict_json(comparisons: tuple[Comparison, ...], devices: int) -> dict[str, Any]:
    """The verdict, and every tensor with what it may differ by."""
    differ = sum(c.differs for c in comparisons)
    rows = [{**_numbers(c), "allowed": c.allowed, "limit": c.limit, "differs": c.differs} for c in comparisons]
    verdict = "different" if differ else "equal"
    return {"verdict": verdict, "devices": devices, "compared": len(rows), "differ": differ, "tensors": rows}


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """Its fields; JSON has no NaN and no infinity, which become texts."""
    fields = asdict(comparison).items()
    return {n: str(v) if isinstance(v, float) and not math.isfinite(v) else v for n, v in fields}


def _row(kind: str, comparisons: tuple[Comparison, ...]) -> tuple[str | int | float, ...]:
    found = [c for c in comparisons if c.kind == kind]
    worst = max(found, key=lambda c: c.share)
    differ, elements = sum(c.differs for c in found), sum(c.elements for c in found)
    return PLURALS[kind], len(found), elements, differ, worst.relative, worst.share, worst.name
