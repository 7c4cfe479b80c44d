"""What `ssdsl verify` ends with: how many tensors were compared, and how far they were apart."""

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
    note = "worst error: relative to the largest element of its tensor; what is allowed and why: ssdsl/run/compare.py"
    return View("compared with a single device", COLUMNS, tuple(_row(k, comparisons) for k in kinds), (note,))


def _row(kind: str, comparisons: tuple[Comparison, ...]) -> tuple[str | int | float, ...]:
    found = [c for c in comparisons if c.kind == kind]
    worst = max(found, key=lambda c: c.error / c.allowed)
    differ = sum(c.differs for c in found)
    share = worst.error / worst.allowed
    return PLURALS[kind], len(found), sum(c.elements for c in found), differ, worst.relative, share, worst.name
