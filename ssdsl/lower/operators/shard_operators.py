"""Turns the plan's indices into splits of operators, and refuses those that an operator cannot have.

Worked example: `up` of [8, 8] to 8 `ffn`, on the two devices of `tp`, by `split model by ffn`

    into tp                                over (ffn: tp): device k has columns 4 k to 4 k + 3
    into tp, m = 2                         over (ffn: tp, ffn: m): 4 columns on a device, 2 of them at a time
    into tp, m = [3, 1]                    the same, 3 columns and then 1: one index of `ffn` may have sizes
    into tp parts [[0, 3], [1, 2]], m = 2  refused (E0401): a device's chunks are apart, and `m` cuts them in time

A kernel that is told where its part begins (`placed_dims`), such as a loss along its classes, needs one run of
positions: `tp parts [[0, 3], [1, 2]]` is refused for it (E0408).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from ssdsl.ir.function import OpSplit, Split
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Coordinate, Time, names_of
from ssdsl.lower.errors import CombinedInTime, PartsApart, UnevenWithOthers
from ssdsl.lower.operators.coordinates import are_chunks_cut, operator_splits
from ssdsl.lower.operators.operand_types import operand_shape, operand_types
from ssdsl.lower.stages import Divided, Summed, grown
from ssdsl.model.dims.window import Band, Moved, Rolled
from ssdsl.model.graph import Operator
from ssdsl.model.ops.reader import placed_dims
from ssdsl.plan.plan import Index, Plan
from ssdsl.record import replace
from ssdsl.rewrite.divide_dims import undivided_by
from ssdsl.text.diagnostic import Diagnostic, PlanError


def shard_operators(lowering: Summed) -> Divided:
    """Adds the splits of every placed operator.

    Raises PlanError: unequal parts, or windows, along a dimension that another index cuts too; parts that are no runs,
    where an operator needs runs; statistics split in time.
    """
    splits: dict[str, tuple[OpSplit, ...]] = {}
    wrong: dict[tuple[str, str], Diagnostic] = {}
    right = set[tuple[int, tuple[Split, ...]]]()  # calls, with their cuts, without problems
    signatures, plan, cuts = lowering.graph.signatures, lowering.plan, cache(partial(_cuts, lowering))
    windowed = lowering.graph.windowed
    for operator in lowering.graph.computing:
        own = lowering.cuts[operator.name]
        if (call := (signatures[operator.name], own)) not in right:
            indices, submesh = plan.of(operator.name).indices, lowering.submeshes[operator.name]
            problems = list(_problems(operator, indices, own, submesh, windowed, cuts))
            if problems and (moved := moved_dims(operator)):
                # padding, slices, joins and rolls only move positions: where parts cannot, each moves all of them
                own = tuple(split for split in own if moved.isdisjoint(split.dims))
                left = tuple(index for index in indices if moved.isdisjoint(index.dims))
                problems = list(_problems(operator, left, own, submesh, windowed, cuts))
            for problem, index in problems:
                if (problem.code, index) not in wrong:
                    wrong[problem.code, index] = _with_cause(problem, operator, plan)
            if not problems and own is lowering.cuts[operator.name]:
                right.add(call)
        carried = lowering.sums.get(operator.name, ())
        splits[operator.name] = (*own, *carried) if carried else own
    if wrong:
        raise PlanError(*wrong.values())
    return grown(lowering, Divided, splits=splits)


def moved_dims(operator: Operator) -> frozenset[int]:
    """The dimensions of an operator's results whose positions are those of an operand, moved."""
    windows = (d.window for d in operator.dims if d.window is not None)
    return frozenset(w.of for w in windows if isinstance(w.shape, Moved | Rolled))


def _with_cause(problem: Diagnostic, operator: Operator, plan: Plan) -> Diagnostic:
    """The problem; of unequal parts with the operator that does not allow them beside equal ones."""
    if not isinstance(problem, UnevenWithOthers) or problem.windows:
        return problem
    classes = (dim.cls for dim in operator.dims if dim.name == problem.dim)
    other = next((o for cls in classes if (o := undivided_by(plan, cls)) is not None), None)
    if other is None or other.module == operator.module:
        return problem
    return replace(problem, obstacle=f"`{other.kind}` in module `{other.module}` ({other.source})")


def data_splits(
    operator: Operator, indices: tuple[Index, ...], submesh: Submesh, windowed: frozenset[int]
) -> tuple[Split, ...]:
    """The splits over devices of an operator that runs once per step, and is computed whole along all other indices.

    A kernel that gets the position of its part, or reads windows, needs one run: an index in time outside a split
    leaves a device several.
    """
    cut = operator_splits(operator, indices, submesh)
    if refused := {name for _, name in _problems(operator, indices, cut, submesh, windowed, dict)}:
        cut = operator_splits(operator, tuple(i for i in indices if i.name not in refused), submesh)
    placed, held = placed_dims(operator) | {d.window.of for d in operator.dims if d.window is not None}, list[Split]()
    for number, split in enumerate(cut):
        outside = (s for s in cut[:number] if not isinstance(s.coordinate, Axis))
        own = placed.intersection(split.dims)
        if isinstance(split.coordinate, Axis) and all(own.isdisjoint(s.dims) for s in outside):
            held.append(split)
    return tuple(held)


def _cuts(lowering: Summed) -> dict[int, int]:
    """By the class of a dimension, the least number of equal groups of positions such that no part of the plan has only
    some of a group: the least common multiple of the part counts of all operators. With 4 and 6 parts it is 12."""
    cuts: dict[int, int] = {}
    for operator in lowering.graph.operators:
        parts: dict[int, int] = {}
        for index in lowering.plan.of(operator.name).indices:
            cls = operator.dims[index.dim].cls
            parts[cls] = parts.get(cls, 1) * index.digit.parts
        for cls, count in parts.items():
            cuts[cls] = math.lcm(cuts.get(cls, 1), count)
    return cuts


def _problems(
    operator: Operator,
    indices: tuple[Index, ...],
    splits: tuple[Split, ...],
    submesh: Submesh,
    windowed: frozenset[int],
    cuts: Callable[[], dict[int, int]],
) -> Iterator[tuple[UnevenWithOthers | CombinedInTime | PartsApart, str]]:
    path = operator.module
    moved = _moved_statistics(operator, splits, submesh)
    along = {name: split.coordinate for split in splits for name in names_of(split.coordinate)}
    batch = operator.inputs[0].axes[0] if operator.inputs and operator.inputs[0].axes else ()
    for index in indices:
        dim = operator.dims[index.dim]
        same = [i for i in indices if not {*i.dims}.isdisjoint(index.dims)]
        others = [i.name for i in same if i.name != index.name]
        windows = [d.window.shape for d in operator.dims if d.window is not None and d.window.of == index.dim]
        is_of_keys = any(operator.dims[d].beside is not None for d in index.dims)
        is_in_time, together = isinstance(along[index.name], Time), names_of(along[index.name])
        in_times = [i.name for i in same if isinstance(along[i.name], Time)]
        reads_windows = bool(is_of_keys and in_times) or any(not isinstance(w, Band) for w in windows)
        joined = len(same) > 1 and all(i.name in together for i in same)
        joined = joined and (dim.cls in windowed or are_chunks_cut(same))
        why = _needs_runs(operator, index, is_in_time=is_in_time)
        if joined and not why and not _in_order(operator, splits):
            why = "its parts are told where they begin"
        if not why and index.name in moved:
            why = "its running statistics are stored in runs, one behind the other"
        if why:
            where = operator.kind, path, operator.source
            problem = PartsApart(index.span, dim.name, index.name, why, *where, index.digit.are_single)
            yield problem, index.name
        is_told_of = any(i.dim == index.dim and i.digit.sizes is None for i in same[same.index(index) + 1 :])
        if others and not joined and (index.digit.sizes is not None or (reads_windows and not is_told_of)):
            is_outer, permuted = same[-1].name != index.name, _is_permuted(index)
            apart = not index.digit.are_single
            in_time = next(iter(in_times), "") if reads_windows or apart else ""
            uneven = UnevenWithOthers(
                index.span, dim.name, index.name, others[0], path, reads_windows, in_time, is_outer, permuted, apart
            )
            yield uneven, index.name
        elif others and not joined and (run := _undivided(operator, index, same, splits)):
            uneven = UnevenWithOthers(
                index.span, dim.name, index.name, others[0], path, False, "", is_outer=False, permuted=False, run=run
            )
            yield uneven, index.name
        elif (cut := _cut_in_front(operator, index, indices, along)) is not None:
            keys, other = cut
            in_time = index.name if is_in_time else other
            uneven = UnevenWithOthers(
                index.span, keys, index.name, other, path, True, in_time, is_outer=False, permuted=False
            )
            yield uneven, index.name
        elif is_in_time and any(operator.dims[d].combined for d in index.dims):
            groups = cuts().get(dim.cls, 0) if index.dim in batch and all(i.digit.sizes is None for i in same) else 0
            yield (
                CombinedInTime(index.span, operator.kind, path, dim.name, index.name, operator.source, groups),
                index.name,
            )


def _moved_statistics(operator: Operator, splits: tuple[Split, ...], submesh: Submesh) -> set[str]:
    """The axes along which an operator needs its running statistics in another layout than that in which they are
    stored: it would update a copy."""
    moved = set[str]()
    for operand in (o for o in operator.inputs if o.value in operator.statistics):
        needed = operand_types(operator, splits, operand, submesh.axes, is_output=False)[0].layout
        stored = needed.stored(operand_shape(operator, operand))
        pairs = zip(submesh.axes, needed.places, stored.places, strict=True)
        moved |= {name for (name, _), here, there in pairs if here != there}
    return moved


def _is_permuted(index: Index) -> bool:
    """Whether the parts are runs of one size; as regions, they are not in the dimension's order."""
    return index.digit.at is not None and index.digit.are_single and not index.digit.is_unequal


def _undivided(operator: Operator, index: Index, same: list[Index], splits: tuple[Split, ...]) -> int:
    """The positions in a run that the index would have to cut, but cannot: where it cuts inside of others, or others
    cut the keys of its queries, all parts are of one size. 0 if it can."""
    if all(operator.dims[d].beside is None for i in same for d in i.dims):
        return 0
    (own,) = (s for s in splits if index.name in names_of(s.coordinate))
    outside = [s.digit for s in splits[: splits.index(own)] if not {*s.dims}.isdisjoint(own.dims)]
    run = min((digit.stride for digit in outside), default=operator.dims[index.dim].size)
    return run if run % index.digit.parts and all(digit.at is None for digit in outside) else 0


def _cut_in_front(
    operator: Operator, index: Index, indices: tuple[Index, ...], along: Mapping[str, Coordinate]
) -> tuple[str, str] | None:
    """Another index that cuts a dimension on which the index's own one is windowed (keys, in causal attention), if one
    of both is in time; None if there is none."""
    for number, dim in enumerate(operator.dims):
        if dim.window is None or dim.window.of != index.dim or number == index.also:
            continue
        for other in (i.name for i in indices if i.name != index.name and number in i.dims):
            if any(isinstance(along[name], Time) for name in (index.name, other)):
                return dim.name, other
    return None


def _in_order(operator: Operator, splits: tuple[Split, ...]) -> bool:
    """Whether the parts are in the order of ranks, where several axes cut one dimension together and a kernel gets the
    start of its part."""
    placed = placed_dims(operator)
    cut = (s for s in splits if s.dim in placed and len(names_of(s.coordinate)) > 1)
    return all(s.digit.at is None or [*s.digit.at] == sorted(s.digit.at) for s in cut)


def _needs_runs(operator: Operator, index: Index, *, is_in_time: bool) -> str:
    """The reason why the parts of an index have to be runs, or runs in order; empty if they are, or need not be."""
    if index.digit.are_runs:
        return ""
    if is_in_time and not index.digit.are_single:
        return f"those of `{index.name}` run one after another"
    windows = [d.window.shape for d in operator.dims if d.window is not None and d.window.of == index.dim]
    if not index.digit.are_single and not all(isinstance(window, Band) for window in windows):
        return "its neighbours are read"
    if windows and is_in_time:
        return "each part reads those before it, which run first"
    if not placed_dims(operator).isdisjoint(index.dims):
        return "its parts are told where they begin"
    return ""
