"""`ssdsl profile --kernels compiled`: what compiled runs, and the operators outside of them, take in a step."""

from collections.abc import Sequence

from ssdsl.run.profile.timed_calls import TimedCall
from ssdsl.show.view import Column, ColumnKind, View

MOST = 30  # rows
COLUMNS = (
    Column("called", style="bold cyan", fold=True),
    Column("module", fold=True),
    Column("plan", drop=1, fold=True),
    Column("forward", ColumnKind.SECONDS),
    Column("backward", ColumnKind.SECONDS),
)


def timed_calls_view(title: str, calls: Sequence[TimedCall]) -> View:
    """The table, those that take longest first; the rest is one row."""
    rows = [(c.place.name, c.place.module, c.place.plan, c.forward_s, c.backward_s) for c in calls[:MOST]]
    if rest := calls[MOST:]:
        rows.append((f"{len(rest)} more", "", "", sum(c.forward_s for c in rest), sum(c.backward_s for c in rest)))
    note = "called: a compiled run by the name of its function, or an operator; seconds of all calls in a step"
    return View(title, COLUMNS, tuple(rows), (note,))
