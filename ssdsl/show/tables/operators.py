"""`ssdsl show PLAN ops`: the operators, how the plan cuts them and where it puts them."""

from collections.abc import Iterator

from ssdsl.model.discover.found import FoundRule
from ssdsl.model.graph import Operator, Stage
from ssdsl.plan.eval.paths import starred, starred_module
from ssdsl.plan.plan import Plan
from ssdsl.show.pattern import merged
from ssdsl.show.view import Column, ColumnKind, View

COLUMNS = (
    Column("operator", ColumnKind.PATH, "bold cyan"),
    Column("times", ColumnKind.COUNT),
    Column("dimensions", fold=True),
    Column("indices", fold=True, style="green"),
    Column("placed on"),
)
EXPERIMENT = Column("found by experiment", fold=True, key="experiment")
OTHERS = ((Stage.DATA, "depend on the inputs only"), (Stage.CONSTANT, "depend on nothing"))


def operators_view(plan: Plan, every: bool = False) -> View:
    """A row per operator. Without `every`, operators that are alike in all layers share one, and those that only
    regroup axes have none."""
    groups: dict[tuple[str, ...], list[Operator]] = {}
    computing = [o for o in plan.graph.operators if o.stage is Stage.COMPUTE]
    for operator in (o for o in computing if every or not o.row.regroups):
        path = operator.module if every else starred_module(operator.module)
        key = (operator.name if every else operator.kind, path, *_columns(plan, operator))
        groups.setdefault(key, []).append(operator)
    rows = tuple(_row(key, found) for key, found in groups.items())
    columns: tuple[Column, ...] = COLUMNS
    if any(o.found is not None for o in plan.graph.operators):
        columns = (*COLUMNS, EXPERIMENT)
        rows = tuple((*row, _shown(found[0].found)) for row, found in zip(rows, groups.values(), strict=True))
    return View(f"operators of {plan.graph.name}", columns, rows, tuple(_notes(plan, every)))


def _shown(found: FoundRule | None) -> str:
    """The signature that was found, with the reason if it cuts nothing."""
    if found is None:
        return ""
    return f"{found.signature}{f' ({found.why_whole})' if found.why_whole else ''}"


def _notes(plan: Plan, every: bool) -> Iterator[str]:
    for stage, what in OTHERS:
        if count := sum(o.stage is stage for o in plan.graph.operators):
            yield f"{count} more {what} and run wherever they are needed"
    regrouping = sum(o.row.regroups and o.stage is Stage.COMPUTE for o in plan.graph.operators)
    if regrouping and not every:
        yield f"{regrouping} more only regroup or reorder axes; --all shows them, and every layer"


def _row(key: tuple[str, ...], found: list[Operator]) -> tuple[str | int, ...]:
    return f"{merged(o.module for o in found)} {key[0]}", len(found), *key[2:]


def _columns(plan: Plan, operator: Operator) -> Iterator[str]:
    """The cells of dimensions, indices and placement, in the names that `split` takes."""
    names = [starred(d.name) for d in operator.dims]
    yield " ".join(f"{name}={d.size}" for name, d in zip(names, operator.dims, strict=True) if d.size > 1)
    indices = plan.of(operator.name).indices
    whole = [i for i in plan.of(operator.name).whole if i.name not in {mine.name for mine in indices}]
    cuts = (f"{i.name}={i.count}:{names[i.dim]}" for i in indices)
    yield " ".join([*cuts, *(f"{i.name}:{names[i.dim]} whole" for i in whole)])
    placement = plan.of(operator.name).place
    fixed = ", ".join(f"{axis} = {at}" for axis, at in placement.fixed) if placement else ""
    yield f"{placement.mesh}{f'[{fixed}]' if fixed else ''}" if placement else "nowhere"
