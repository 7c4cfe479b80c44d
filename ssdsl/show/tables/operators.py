"""`ssdsl show PLAN ops`: the operators, how the plan cuts them and where it puts them; and `ssdsl show PLAN dims`: the
dimensions that the analysis found, by which a plan can split."""

from collections.abc import Iterator

from ssdsl.lang.formatter.spell import spell_dim
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.plan.paths import starred, starred_module
from ssdsl.plan.plan import Plan
from ssdsl.record import Record
from ssdsl.show.layout import result_text
from ssdsl.show.pattern import merged
from ssdsl.show.view import Column, ColumnKind, View

COLUMNS = (
    Column("operator", ColumnKind.PATH, "bold cyan"),
    Column("times", ColumnKind.COUNT),
    Column("dimensions", fold=True),
    Column("indices", fold=True, style="green"),
    Column("makes", fold=True, key="makes"),
    Column("placed on"),
)
OTHERS = ((Stage.DATA, "depend on the inputs only"), (Stage.CONSTANT, "depend on nothing"))


def operators_view(plan: Plan, every: bool = False) -> View:
    """A row per operator. Without `every`, operators that are alike in all layers share one, and those that only
    regroup axes have none."""
    groups: dict[tuple[str, ...], list[Operator]] = {}
    computing = [o for o in plan.graph.operators if o.stage is Stage.COMPUTE]
    for operator in (o for o in computing if every or not o.row.regroups):
        path = operator.module if every else starred_module(operator.module)
        of_parts = plan.of(operator.name).selected
        key = (operator.name if every else operator.kind, of_parts, path, *_columns(plan, operator))
        groups.setdefault(key, []).append(operator)
    rows = tuple(_row(key, found) for key, found in groups.items())
    return View(f"operators of {plan.graph.name}", COLUMNS, rows, tuple(_notes(plan, every)))


def _notes(plan: Plan, every: bool) -> Iterator[str]:
    for stage, what in OTHERS:
        if count := sum(o.stage is stage for o in plan.graph.operators):
            yield f"{count} more {what} and run wherever they are needed"
    regrouping = sum(o.row.regroups and o.stage is Stage.COMPUTE for o in plan.graph.operators)
    if regrouping and not every:
        yield f"{regrouping} more only regroup or reorder axes; --all shows them, and every layer"


def _row(key: tuple[str, ...], found: list[Operator]) -> tuple[str | int, ...]:
    kind, of_parts, _, *columns = key
    return f"{merged(o.module for o in found)}{of_parts} {kind}", len(found), *columns


def _columns(plan: Plan, operator: Operator) -> Iterator[str]:
    """The cells of dimensions, indices, what it makes on a device and placement, in the names that `split` takes."""
    names = [starred(d.name) for d in operator.dims]
    yield " ".join(f"{name}={d.size}" for name, d in zip(names, operator.dims, strict=True) if d.size > 1)
    indices = plan.of(operator.name).indices
    whole = [i for i in plan.of(operator.name).whole if i.name not in {mine.name for mine in indices}]
    cuts = (f"{i.name}={i.digit.parts}:{names[i.dim]}" for i in indices)
    yield " ".join([*cuts, *(f"{i.name}:{names[i.dim]} whole" for i in whole)])
    yield result_text(operator, plan.of(operator.name))
    placement = plan.of(operator.name).place
    fixed = ", ".join(f"{axis} = {at}" for axis, at in placement.fixed) if placement else ""
    yield f"{placement.mesh}{f'[{fixed}]' if fixed else ''}" if placement else "nowhere"


# -- dimensions --------------------------------------------------------------------------------------------------------


DIMS = (
    Column("dimension", ColumnKind.PATH, "bold cyan", spell=spell_dim),
    Column("size", ColumnKind.COUNT),
    Column("times", ColumnKind.COUNT),
    Column("operators", ColumnKind.COUNT),
    Column("as in", ColumnKind.PATH),
    Column("not splittable in", ColumnKind.PATH, drop=1),
)


class _Found(Record):
    """A dimension in one operator."""

    cls: int
    fixed: str
    operator: Operator


def dims_view(graph: Graph, every: bool = False) -> View:
    """A row per name and size, or with `every` a row per dimension. A table writes names as `split` takes them."""
    groups: dict[tuple[object, ...], list[_Found]] = {}
    for operator in graph.operators:
        if operator.stage is Stage.COMPUTE:
            for dim in operator.dims:
                if dim.size > 1 and dim.window is None:  # it is cut as the results are
                    key = (dim.name, dim.size, dim.cls) if every else (starred(dim.name), dim.size)
                    groups.setdefault(key, []).append(_Found(dim.cls, dim.fixed, operator))
    rows = tuple(_dimension(str(key[0]), key[1], found) for key, found in groups.items())
    return View(f"dimensions of {graph.name}", DIMS, tuple(sorted(rows, key=lambda row: -int(row[3] or 0))))


def _dimension(name: str, size: object, found: list[_Found]) -> tuple[str | int, ...]:
    assert isinstance(size, int)
    operators = {f.operator.name for f in found}
    free = [f for f in found if not f.fixed]
    fixed = {f.operator.name: f.operator.kind for f in found if f.fixed}
    kinds = ", ".join(dict.fromkeys(fixed.values()))
    blocked = f"{kinds} ({'all' if len(fixed) == len(operators) else len(fixed)})" if fixed else ""
    example = _example((free or found)[0], found)
    return name, size, len({f.cls for f in found}), len(operators), example, blocked


def _example(first: _Found, found: list[_Found]) -> str:
    """The first operator's module and kind, with the numbers of all layers where it occurs."""
    path, kind = starred_module(first.operator.module), first.operator.kind
    like = [f.operator.module for f in found if (starred_module(f.operator.module), f.operator.kind) == (path, kind)]
    return f"{merged(like)} {kind}"
