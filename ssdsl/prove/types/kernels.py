"""Checks the kernels of operators' parts: the function and its arguments are derived again from the splits."""

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache

from ssdsl.ir.function import Kernel, Offset, OpPart, PartRuns, Region, Split, WindowPart, names_along
from ssdsl.ir.value import Axis
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.ops.reader import argument, axes_of, parameters
from ssdsl.plan.regions import Digit
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Axes, Regions, Runs
from ssdsl.prove.types.operators import OURS, Combining, combining
from ssdsl.prove.types.windows import is_inside, part_function, parts_of, place_of, windowed_on
from ssdsl.record import Record, field_names, replace


class Adding(Record):
    """A function whose parts add up: positions of an operand's axis that are not in its part count as zeros. `checks`:
    it is told the size of the whole axis, to refuse positions that no part has. Of several axes it is told the place
    and the size of each."""

    function: str
    operand: int
    axis: int | str | tuple[int, ...] | None  # its number, that of an argument, those of several, or None for all
    checks: bool = True


ADDING = {
    "aten::embedding": Adding("embedding_part", 0, 0),
    "aten::gather": Adding("gather_part", 0, "dim"),
    "aten::nll_loss_nd": Adding("nll_part", 0, 1),
    "aten::index": Adding("index_part", 0, None),
    "aten::index_select": Adding("index_select_part", 0, "dim"),
    "aten::select": Adding("select_part", 0, "dim"),
    "aten::grid_sampler_2d": Adding("grid_sample_part", 0, (2, 3)),
    "aten::grid_sampler_3d": Adding("grid_sample_part", 0, (2, 3, 4)),
    "ssdsl::routed_mm": Adding("routed_mm", 1, 0, checks=False),
}


class Told(Record):
    """A kernel with the arguments that it gets. They are sets, because the order of axes, and of addends of an offset,
    does not matter."""

    function: str
    axes: frozenset[str] = frozenset()
    offsets: frozenset[Offset] = frozenset()
    before: frozenset[Offset] = frozenset()
    windows: frozenset[WindowPart] = frozenset()
    places: tuple[tuple[frozenset[Offset], int], ...] = ()
    region: Region | None = None
    size: int | None = None
    count: int | None = None
    merging: frozenset[str] = frozenset()
    queries: PartRuns | None = None

    def __str__(self) -> str:
        words = [self.function or "its own call", f"over {{{', '.join(sorted(self.axes))}}}"]
        for name in field_names(self)[2:]:
            value = getattr(self, name)
            if isinstance(value, frozenset) and value:
                words.append(f"{name} {', '.join(sorted(map(str, value)))}")
            elif not isinstance(value, frozenset) and value is not None:
                words.append(f"{name} {value}")
        return " ".join(words)


def check_kernel(operator: Operator, op: OpPart, axes: Axes) -> None:
    """Raises Wrong unless the kernel is the one that computes this part, with the right arguments. `axes` are those of
    the submesh."""
    splits = [s for s in op.splits if isinstance(s, Split)]
    windows = _windows(operator, splits)
    wanted = _reading_windows(operator, splits, windows) if windows else _wanted(operator, splits, axes)
    told = op.kernel
    given = (told.axes, told.offsets, told.before, told.windows, told.merging, *(p.offsets for p in told.places))
    found = Told(
        told.function,
        frozenset(told.axes),
        frozenset(told.offsets),
        frozenset(told.before),
        frozenset(told.windows),
        tuple((frozenset(place.offsets), place.size) for place in told.places),
        told.region,
        told.size,
        told.count,
        frozenset(told.merging),
        told.queries,
    )
    if found != wanted or any(len(set(items)) != len(items) for items in given):
        raise Wrong(Rule.KERNEL, str(wanted), str(found))


def _reading_windows(operator: Operator, splits: list[Split], windows: frozenset[WindowPart]) -> Told:
    of = {d.window.of for d in operator.dims if d.window is not None}
    inside = (s for s in splits if s.dim in of and s.also is None and is_inside(operator, s))
    offsets = frozenset(Offset(s.coordinate, s.digit) for s in inside)
    return Told(part_function(operator) or "a kernel that does not exist", offsets=offsets, windows=windows)


def _windows(operator: Operator, splits: list[Split]) -> frozenset[WindowPart]:
    """A WindowPart for each axis along which a part reads windows."""
    found = set()
    for split in (s for s in splits if not is_inside(operator, s)):
        for number in windowed_on(operator, split, splits):
            operand, axis = place_of(operator, number)
            results, needs = zip(*parts_of(operator, split, number), strict=True)
            found.add(WindowPart(split.coordinate, axis, results, needs, operator.dims[number].size, operand))
    return frozenset(found)


def check_first(operator: Operator, op: OpPart) -> None:
    """Raises Wrong unless an operand such as a bias is added only by the first part along every summed coordinate."""
    addend = any(o.once for o in operator.inputs)
    wanted = [s.coordinate for s in op.splits if isinstance(s, Split) and operator.summed(s.dim)] if addend else []
    if sorted(map(str, op.first)) != sorted(map(str, wanted)):
        raise Wrong(Rule.FIRST, [c.name for c in wanted], [c.name for c in op.first])


def _wanted(operator: Operator, splits: list[Split], axes: Axes) -> Told:
    combined = [s for s in splits if any(operator.dims[d].combined for d in s.dims)]
    if combined and operator.target.startswith(OURS):
        found = combining(operator, together=any(s.also is not None for s in combined))
        dims = {d for s in combined for d in s.dims if operator.dims[d].combined}
        if found is not None and found.into is not None:
            operand = operator.inputs[found.into[0]]
            into = Along(operand, (operand.axes[argument(operator, found.into[1])],), apart=True)
            return _combining(operator, found, into, combined, axes)
        operand = next(o for o in operator.inputs if any(o.carries(d) for d in dims))
        along = tuple(axis for axis in operand.axes if not dims.isdisjoint(axis))
        told = _combining(operator, found, Along(operand, along), combined, axes)
        return _with_queries(operator, told, splits, axes) if found is not None and "queries" in found.told else told
    if combined:
        return _combining(operator, *_of_users(operator), combined, axes)
    for target in (operator.target, operator.target.partition(".")[0]):
        if (adding := ADDING.get(target)) is not None:
            operand = operator.inputs[adding.operand]
            if not isinstance(adding.axis, (int, str)):
                space = [operand.axes[n] for n in adding.axis or range(len(operand.axes))]
                rows = [s for s in splits if operator.summed(s.dim) and any(s.dim in axis for axis in space)]
                return Told(adding.function, places=_places(operator, space, rows)) if rows else Told(Kernel().function)
            number = argument(operator, adding.axis) if isinstance(adding.axis, str) else adding.axis
            rows = [s for s in splits if operand.axes and s.dim in operand.axes[number] and operator.summed(s.dim)]
            if rows:
                size = math.prod(operator.dims[d].size for d in operand.axes[number]) if adding.checks else None
                return Told(
                    adding.function, offsets=frozenset(_offsets(operator, operand.axes[number], rows)), size=size
                )
    return Told(Kernel().function)


Places = tuple[tuple[frozenset[Offset], int], ...]


def _places(operator: Operator, axes: Iterable[tuple[int, ...]], splits: list[Split]) -> Places:
    """For each of an operand's axes where a part begins, and the size of the whole."""

    def place(axis: tuple[int, ...]) -> tuple[frozenset[Offset], int]:
        own = [s for s in splits if s.dim in axis]
        size = math.prod(operator.dims[d].size for d in axis)
        return frozenset(_offsets(operator, axis, own) if own else ()), size

    return tuple(map(place, axes))


class Along(Record):
    """An operand, and those of its axes along which a kernel works. `apart`: it communicates along others only."""

    operand: Operand
    axes: tuple[tuple[int, ...], ...]
    apart: bool = False


def _of_users(operator: Operator) -> tuple[Combining | None, Along]:
    """The kernel of a user's row, and the operand and axes along which it works."""
    kernel = operator.row.kernel
    if kernel is None:
        return None, Along(operator.inputs[0], ())
    parameter, _ = kernel.axis
    operand = next(o for name, o in zip(parameters(operator), operator.inputs, strict=True) if name == parameter)
    told = tuple(word for word in ("start", "part", "regions", "places", "size", "count") if kernel.tells(word))
    along = Along(operand, axes_of(operator, *kernel.axis), kernel.merged is not None)
    return Combining(kernel.function, told, kernel.tells("group")), along


def _combining(operator: Operator, found: Combining | None, along: Along, splits: list[Split], axes: Axes) -> Told:
    """The kernel that combines parts, with the arguments that it takes."""
    own = [s for s in splits if not along.apart or any(not {*s.dims}.isdisjoint(a) for a in along.axes)]
    around = [s for s in splits if s.also is not None]
    merging = names_along(s for s in splits if s.also is None) if around else ()
    merged = [s for s in splits if s not in own] if along.apart else splits
    over = frozenset(name for s in merged if isinstance(s.coordinate, Axis) for name in s.coordinate.names)
    if found is None:
        return Told("a kernel that does not exist", over)
    in_rings = (*(a for a in axes if a[0] in merging), *(a for a in axes if a[0] not in merging))
    is_placed = own and ("start" in found.told or "part" in found.told)
    axis = next((a for s in own[:1] for a in along.operand.axes if not {*s.dims}.isdisjoint(a)), ())
    offsets = _offsets(operator, axis, own) if is_placed else []
    return Told(
        found.function,
        over if found.talks else frozenset(),
        offsets=frozenset(offsets if "start" in found.told else ()),
        before=frozenset(_before(own, offsets) if "part" in found.told else ()),
        places=_places(operator, along.axes, own) if "places" in found.told else (),
        region=_region(operator, along.operand, own, in_rings) if "regions" in found.told else None,
        size=math.prod(operator.dims[d].size for a in along.axes for d in a) if "size" in found.told else None,
        count=math.prod(d.size for d in operator.dims if d.combined) if "count" in found.told else None,
        merging=frozenset(merging),
    )


def _with_queries(operator: Operator, told: Told, splits: list[Split], axes: Axes) -> Told:
    """A kernel of attention, with the positions of its queries. It needs them if a query does not see all keys, unless
    it has all queries, or those at the positions of the keys that it has itself."""
    query, key = operator.inputs[:2]
    own = [s for s in splits if not {*s.dims}.isdisjoint(query.axes[-2])]
    if all(operator.dims[d].window is None for d in key.axes[-2]) or not own:
        return told
    names = tuple(name for name, _ in axes if name in names_along(own))
    runs = _region(operator, query, own, axes).runs
    if told.axes == {*names} and told.region is not None and told.region.runs == runs:
        return told
    return replace(told, queries=PartRuns(Axis(names[0], names[1:]), runs))


def _offsets(operator: Operator, axis: tuple[int, ...], splits: list[Split]) -> list[Offset]:
    """The offsets whose sum is a part's first position on an axis of these dimensions. Raises Wrong if a part is not
    one run of the axis."""
    if any(s.dim not in axis for s in splits):
        raise Wrong(Rule.KERNEL, "splits of one axis", [s.dim for s in splits])
    offsets = []
    for s in splits:
        if any(len(runs) != 1 for runs in s.digit.at or ()) or [*(s.digit.at or ())] != sorted(s.digit.at or ()):
            raise Wrong(Rule.KERNEL, "parts one behind the other", s.digit.at)
        inner = math.prod(operator.dims[d].size for d in axis[axis.index(s.dim) + 1 :])
        at = None if s.digit.at is None else tuple(((start * inner, end * inner),) for ((start, end),) in s.digit.at)
        offsets.append(Offset(s.coordinate, Digit(s.digit.parts, s.digit.stride * inner if at is None else 1, at)))
    whole = math.prod(operator.dims[d].size for d in axis)
    # nested digits of the outermost factor leave runs: the smallest stride times all parts is the axis
    plain = [o.digit.stride for o in offsets if o.digit.at is None]
    is_run = len(splits) == 1 and not plain and splits[0].dim == axis[0]
    are_runs = len(plain) == len(splits) and min(plain) * math.prod(s.digit.parts for s in splits) == whole
    if not is_run and not are_runs:
        raise Wrong(Rule.KERNEL, "parts that are runs of the axis", [s.dim for s in splits])
    return offsets


def _before(splits: list[Split], offsets: list[Offset]) -> list[Offset]:
    """The offsets whose sum is the number of parts before one: a step of an outer index passes all parts of the inner
    ones."""
    found = []
    for s, own in zip(splits, offsets, strict=True):
        inner = (o.digit.parts for o in offsets if o.digit.stride < own.digit.stride)
        found.append(Offset(s.coordinate, Digit(s.digit.parts, math.prod(inner))))
    return found


def _region(operator: Operator, operand: Operand, splits: list[Split], axes: Axes) -> Region:
    """The positions on an axis that each device of the kernel's axes has, in the order of the mesh."""
    found = [n for n, axis in enumerate(operand.axes) if any(d in axis for s in splits for d in s.dims)]
    (number, *others) = found
    axis = operand.axes[number]
    cutting = {a: s for s in splits if isinstance(s.coordinate, Axis) for a in s.coordinate.names}
    ordered = [*dict.fromkeys(cutting[name] for name, _ in axes if name in cutting)]
    places = [[axis.index(d) for d in s.dims if d in axis] for s in ordered]
    # no other axis lies between those of a split
    is_alike = names_along(ordered) == tuple(name for name, _ in axes if name in cutting)
    if others or len(ordered) != len(splits) or any(len(place) != 1 for place in places) or not is_alike:
        raise Wrong(Rule.KERNEL, "devices that cut one axis", [str(s.coordinate) for s in splits])
    of = tuple(operator.dims[d].size for d in axis)
    digits = zip(places, (s.digit for s in ordered), strict=True)
    cuts = tuple((place, digit.stride, digit.parts, digit.at) for (place,), digit in digits)
    return Region(number, of, _positions(of, cuts))


@lru_cache(maxsize=1024)
def _positions(of: tuple[int, ...], cuts: tuple[tuple[int, int, int, Regions | None], ...]) -> Regions:
    """The positions of each part on an axis made of dimensions of the sizes `of`, found position by position.

    Each cut is the place of its dimension on the axis, and a digit: its stride, its parts, its regions. Of 2 rows and 4
    columns, the columns are cut in two halves:

    >>> _positions((2, 4), ((1, 2, 2, None),))
    (((0, 2), (4, 6)), ((2, 4), (6, 8)))
    """
    owners = [
        [p // stride % parts for p in range(of[place])] if at is None else _owners(of[place], at)
        for place, stride, parts, at in cuts
    ]
    runs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for position, digits in enumerate(itertools.product(*map(range, of))):
        part = tuple(owner[digits[place]] for owner, (place, *_) in zip(owners, cuts, strict=True))
        own = runs.setdefault(part, [])
        start = own.pop()[0] if own and own[-1][1] == position else position
        own.append((start, position + 1))
    every = itertools.product(*(range(parts) for _, _, parts, _ in cuts))
    return tuple(tuple(runs.get(part, ())) for part in every)


def _owners(size: int, at: tuple[Runs, ...]) -> list[int]:
    """The number of the part that each position belongs to."""
    found = [-1] * size
    for part, runs in enumerate(at):
        for start, end in runs:
            found[start:end] = [part] * (end - start)
    return found
