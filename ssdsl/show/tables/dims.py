"""`ssdsl show PLAN dims`: the dimensions that the analysis found, by which a plan can split."""

from dataclasses import dataclass

from ssdsl.lang.formatter.spell import spell_dim
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.plan.eval.paths import starred, starred_module
from ssdsl.show.pattern import merged
from ssdsl.show.view import Column, ColumnKind, View

COLUMNS = (
    Column("dimension", ColumnKind.PATH, "bold cyan", spell=spell_dim),
    Column("size", ColumnKind.COUNT),
    Column("times", ColumnKind.COUNT),
    Column("operators", ColumnKind.COUNT),
    Column("as in", ColumnKind.PATH),
    Column("not splittable in", ColumnKind.PATH, drop=1),
)


@dataclass(frozen=True, slots=True)
class _Found:
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
    rows = tuple(_row(str(key[0]), key[1], found) for key, found in groups.items())
    return View(f"dimensions of {graph.name}", COLUMNS, tuple(sorted(rows, key=lambda row: -int(row[3] or 0))))


def _row(name: str, size: object, found: list[_Found]) -> tuple[str | int, ...]:
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
