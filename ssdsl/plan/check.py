"""Checks all facts together at the end: every operator is placed, and indices fit the axes of the same name."""

from collections.abc import Iterator, Mapping

from ssdsl.identity import places_of
from ssdsl.model.graph import Operator
from ssdsl.plan.errors.parts import CountMismatch, MisspeltAxis
from ssdsl.plan.errors.place import (
    Idle,
    NoMesh,
    NotAssigned,
    NothingAgain,
    OnAllDevices,
    RelatesNothing,
    SplitAndFixed,
    Unread,
)
from ssdsl.plan.errors.split import Division, LeftWhole, OtherName, WithoutRow
from ssdsl.plan.eval.units import module_of
from ssdsl.plan.facts import Facts, SplitIndex
from ssdsl.plan.hints.in_time import near_axes
from ssdsl.plan.hints.number_of_parts import check_parts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Index, Mesh, Placement
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source


def check(facts: Facts, model: ModelIndex, source: Source) -> list[Diagnostic]:
    """The mistakes, one for each pair of index and kind of mistake; `source` is the plan."""
    if not facts.meshes:
        return [NoMesh(None)]
    distinct = facts.distinct(model.numbers(model.compute))
    if any(record.place is None for record in distinct.values()):
        missing = [op for op in model.ordered(model.compute) if facts.of(op.name).place is None]
        return [_not_assigned(facts, model, missing, source)]
    found: dict[object, Diagnostic] = {}
    for number, record in distinct.items():
        mesh = facts.meshes[record.home.mesh]
        axes = dict(mesh.axes)
        for index in record.indices:
            is_part = any(run.index == index.name for run in record.parts)
            if (
                index.name in axes
                and not is_part
                and (wrong := _axis_mistake(facts, record.home, model.graph.operators[number], index, mesh))
            ):
                found.setdefault((index.span, type(wrong)), wrong)
    return [*found.values(), *_misspelt(facts, model), *_not_recomputed(facts, model)]


def _not_recomputed(facts: Facts, model: ModelIndex) -> Iterator[NothingAgain]:
    """A mistake for each place that orders what runs again, where some of these operators are not recomputed."""
    sets = list(facts.sets)
    for (span, number), words in facts.again.items():
        left = (op for op in model.ordered(sets[number]) if not facts.of(op.name).is_recomputed)
        if (first := next(left, None)) is not None:
            yield NothingAgain(span, facts.of(first.name).module(first), words)


def _misspelt(facts: Facts, model: ModelIndex) -> Iterator[MisspeltAxis]:
    """The mistakes of indices in time that are nearly an axis, by their names and by their numbers of parts."""
    for near in near_axes(facts, model):
        if near.count == near.size:
            yield MisspeltAxis(near.span, near.name, near.mesh, near.axis, near.size)


def warnings(facts: Facts, model: ModelIndex, source: Source) -> list[Diagnostic]:
    """The warnings: operators left whole or out, or without a row, statements without effect, indices in time that look
    like axes. Warnings about orders are those of the plan's own text."""
    idle = (RelatesNothing(span) for span, count in facts.pairs.items() if not count)
    rows = (RelatesNothing(span, is_row=True) for span, count in facts.named.items() if not count)
    found: tuple[Diagnostic, ...] = (*idle, *rows, *_on_devices(facts), *check_parts(facts))
    orders = [d for d in found if d.span is not None and d.span.source == source]
    empty = (Unread(span, statement, Idle.EMPTY) for (span, statement), count in facts.selected.items() if not count)
    left = (*_left_whole(facts, model), *_left_out(facts, model), *_without_row(facts, model))
    return list(dict.fromkeys([*facts.warnings, *empty, *left, *near_axes(facts, model), *orders]))


def _on_devices(facts: Facts) -> Iterator[Diagnostic]:
    """Warnings for orders that fix an index that is an axis of the mesh, for all operators that have it."""
    sets = list(facts.sets)
    meshes: dict[tuple[int, str], str | None] = {}
    for span, tasks in facts.ordered():
        for index, _ in tasks.fixed:
            key = tasks.number, index
            if key not in meshes:
                meshes[key] = _mesh_of_all(facts, sets[tasks.number], index)
            if (mesh := meshes[key]) is not None:
                yield OnAllDevices(span, index, mesh)


def _mesh_of_all(facts: Facts, operators: frozenset[str], index: str) -> str | None:
    """The mesh that has `index` as an axis for all operators with that index; None if there is none."""
    having = (r for r in facts.distinct(facts.numbers(operators)).values() if any(i.name == index for i in r.indices))
    places = [record.place for record in having if record.place is not None]
    in_space = [p for p in places if index in dict(facts.meshes[p.mesh].axes)]
    return min(p.mesh for p in places) if places and len(in_space) == len(places) else None


def _left_whole(facts: Facts, model: ModelIndex) -> Iterator[LeftWhole]:
    """A warning for each dimension that parts do not divide, unless another statement has given the operators this
    index along another one."""
    for one in facts.uncut:
        left = [model.operators[name] for name in one.operators if facts.index(name, one.index) is None]
        if left:
            division = Division(one.index, one.count, one.origin)
            paths = tuple(dict.fromkeys(op.module for op in left))
            yield LeftWhole(one.span, one.dim, one.size, division, paths, one.pieces, one.total)


def _left_out(facts: Facts, model: ModelIndex) -> Iterator[OtherName]:
    """A warning for each `split` that misses operators of its selection because they call the same axis by another
    name, where no other statement cuts these."""
    names, axes = model.graph.dim_names, model.graph.axes_of_windows
    for cut in facts.cuts if axes else ():
        joined = {axes[cls] for cls in cut.classes if cls in axes}
        left = [(op, found) for op in _uncut(facts, model, cut) if (found := _free(op, axes, joined))]
        if left:
            others = tuple(dict.fromkeys(names[cls] for _, found in left for cls in found))
            paths = tuple(dict.fromkeys(op.module for op, _ in left))
            yield OtherName(cut.dim.span, cut.dim.text, len(left), others, paths, cut.index)


def _uncut(facts: Facts, model: ModelIndex, cut: SplitIndex) -> Iterator[Operator]:
    """The operators that a `split` names and that do not have its index."""
    numbers = model.numbers(cut.operators)
    left = [
        place
        for record, places in places_of(map(facts.operators.at.__getitem__, numbers))
        if record is None or all(i.name != cut.index for i in (*record.indices, *record.whole))
        for place in places
    ]
    return (model.graph.operators[numbers[place]] for place in sorted(left))


def _free(op: Operator, axes: Mapping[int, int], joined: set[int]) -> list[int]:
    """The dimensions of an operator that could be cut and belong to axes that the `split` cuts. The statement did not
    find them, so they have another name."""
    return [d.cls for d in op.dims if d.window is None and not d.fixed and axes.get(d.cls) in joined]


def _without_row(facts: Facts, model: ModelIndex) -> Iterator[WithoutRow]:
    """A warning for each operator without a row, at the first `split` of a dimension that it needs all of."""
    found: dict[str, list[tuple[Operator, Index]]] = {}
    for op in (op for op in model.graph.operators if op.row.unknown and facts.of(op.name).whole):
        found.setdefault(op.kind, []).append((op, facts.of(op.name).whole[0]))
    for kind, alike in found.items():
        (op, index), paths = alike[0], tuple(dict.fromkeys(op.module for op, _ in alike))
        yield WithoutRow(index.span, kind, index.name, op.dims[index.dim].name, len(alike), paths, model.graph.name)


def _axis_mistake(facts: Facts, placement: Placement, op: Operator, index: Index, mesh: Mesh) -> Diagnostic | None:
    """The mistake of an index whose axis the placement fixes, or whose part count is not the axis's size; else None."""
    name, size = facts.of(op.name).module(op), dict(mesh.axes)[index.name]
    if index.name in dict(placement.fixed) and size > 1:
        return SplitAndFixed(placement.span, name, index.name, first=index.span)
    if index.devices != size:
        return CountMismatch(index.span, index.name, index.devices, mesh.name, size, name, first=mesh.span)
    return None


def _not_assigned(facts: Facts, model: ModelIndex, missing: list[Operator], source: Source) -> NotAssigned:
    modules = tuple(dict.fromkeys(f"{_outermost(op)}{facts.of(op.name).selected}" for op in missing))
    example = _outermost(missing[0]) if len(missing) < len(model.compute) else None
    parts = facts.of(missing[0].name).parts
    return NotAssigned(None, len(missing), modules, example, next(iter(facts.meshes)), parts, source)


def _outermost(operator: Operator) -> str:
    return module_of(operator.path, 1) or operator.module
