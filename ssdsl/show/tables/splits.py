"""The splits of a plan: the indices, and whether their parts run over devices or in time."""

from collections import Counter

from ssdsl.plan.eval.paths import starred
from ssdsl.plan.plan import Plan
from ssdsl.show.view import Column, ColumnKind, View


def splits_view(plan: Plan) -> View:
    """A row for each index, number of parts and dimension, with whether the parts run over devices or in time."""
    columns = (
        Column("index", style="bold cyan"),
        Column("parts", ColumnKind.COUNT),
        Column("run", style="green"),
        Column("split", ColumnKind.PATH, key="dimension"),
        Column("operators", ColumnKind.COUNT),
    )
    operators = plan.graph.by_name
    axes = {m.name: dict(m.axes) for m in plan.meshes}
    found: Counter[tuple[str, int, str, str]] = Counter()
    placed = ((name, record, record.place) for name, record in plan.operators.items() if record.place is not None)
    for name, record, place in placed:
        dims = operators[name].dims
        for index in record.indices:
            run = f"over {place.mesh}" if index.name in axes[place.mesh] else "in time"
            found[index.name, index.count, run, starred(dims[index.dim].name)] += 1
    rows = tuple((*key, count) for key, count in found.items())
    note = "over a mesh: each part on devices of its own; in time: one after another on each device"
    return View("splits", columns, rows, (note,))
