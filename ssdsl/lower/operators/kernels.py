"""The kernel that computes a part of an operator: the operator's own call on slices, or a function of the runtime."""

import itertools
import math
from collections.abc import Iterable, Iterator

from ssdsl.ir.function import (
    CALL,
    Kernel,
    Offset,
    OpSplit,
    PartRuns,
    PlaceOnAxis,
    Region,
    Split,
    WindowPart,
    names_along,
)
from ssdsl.ir.value import Axis, Coordinate, names_of
from ssdsl.lower.operators.operand_types import Axes, is_inner, windows_on
from ssdsl.model.dims.window import around
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.ops.op import PartKernel
from ssdsl.model.ops.reader import AxisOfPart, axes_of, kernel_dims, parameters
from ssdsl.plan.regions import Digit, Runs, on_axis
from ssdsl.record import replace
from ssdsl.runtime.layout.regions import shared
from ssdsl.text.diagnostic import InternalError


def kernel_of(operator: Operator, splits: tuple[OpSplit, ...], axes: Axes) -> Kernel:
    """The kernel of a part with these splits, on a submesh with these axes, with all its arguments."""
    if windows := tuple(_windows(operator, splits)):
        function = operator.row.windows.partition("(")[0]
        return Kernel(function, offsets=tuple(_inside(operator, splits)), windows=windows)
    own = operator.row
    kernel = own.ring if any(isinstance(s, Split) and s.also is not None for s in splits) else own.kernel
    if kernel is None:
        return CALL

    def along(*axes: tuple[str, AxisOfPart]) -> tuple[Split, ...]:
        dims = kernel_dims(operator, *axes)
        return tuple(s for s in splits if isinstance(s, Split) and not {*s.dims}.isdisjoint(dims))

    over = along(*kernel.axes)
    if not over:
        return CALL
    merged = along(kernel.axes[-1])
    over_axes = tuple(name for s in merged if isinstance(s.coordinate, Axis) for name in s.coordinate.names)
    ring = tuple(s for s in merged if s.also is not None)
    # keys go around along the axes that cut the queries too; the results of what others cut are merged behind that
    merging = names_along(s for s in merged if s not in ring) if ring else ()
    in_rings = sorted(axes, key=lambda axis: axis[0] not in merging)
    whole = axes_of(operator, *kernel.axis)
    places = tuple(_place(operator, axis, over) for axis in whole) if kernel.is_placed else ()
    offsets = tuple(offset for place in places for offset in place.offsets)
    return Kernel(
        kernel.function,
        over_axes if kernel.tells("group") else (),
        offsets=offsets if kernel.tells("start") else (),
        before=_before(offsets) if kernel.tells("part") else (),
        places=places if kernel.tells("places") else (),
        region=_region(operator, _split_operand(operator, kernel), over, in_rings) if kernel.tells("regions") else None,
        size=_size(operator, (d for axis in whole for d in axis)) if kernel.tells("size") else None,
        count=_size(operator, (n for n, d in enumerate(operator.dims) if d.combined))
        if kernel.tells("count")
        else None,
        merging=merging,
        queries=_queries(operator, splits, over, axes) if kernel.tells("queries") else None,
    )


def _split_operand(operator: Operator, kernel: PartKernel) -> Operand:
    """The tensor along whose axis the kernel works."""
    return next(o for name, o in zip(parameters(operator), operator.inputs, strict=True) if name == kernel.axis[0])


def _size(operator: Operator, dims: Iterable[int]) -> int:
    return math.prod(operator.dims[d].size for d in dims)


def _windows(operator: Operator, splits: tuple[OpSplit, ...]) -> Iterator[WindowPart]:
    """Yields a WindowPart for each axis along which a part reads windows."""
    for split in (s for s in splits if isinstance(s, Split) and not is_inner(operator, s)):
        results = split.digit.regions(operator.dims[split.dim].size)
        for number, at in windows_on(operator, split, splits):
            needs, size = tuple(map(around, at)), operator.dims[number].size
            operand, axis = place_of(operator, number)
            yield WindowPart(split.coordinate, axis, results, needs, size, operand)


def _inside(operator: Operator, splits: tuple[OpSplit, ...]) -> Iterator[Offset]:
    """Yields the offsets of inner splits: those that cut the parts of a split whose parts read windows."""
    for split in (s for s in splits if isinstance(s, Split) and is_inner(operator, s)):
        if any(windows_on(operator, split, splits)):
            yield Offset(split.coordinate, split.digit)


def place_of(operator: Operator, number: int) -> tuple[int, int]:
    """The first operand that has a dimension, and its axis there."""
    return next((k, at) for k, o in enumerate(operator.inputs) for at, dims in enumerate(o.axes) if number in dims)


def first_of(operator: Operator, splits: tuple[OpSplit, ...]) -> tuple[Coordinate, ...]:
    """The coordinates along which only the first part adds an operand, such as a bias: those whose parts are summed."""
    if not any(o.once for o in operator.inputs):
        return ()
    return tuple(s.coordinate for s in splits if isinstance(s, Split) and operator.summed(s.dim))


def _place(operator: Operator, axis: tuple[int, ...], splits: tuple[Split, ...]) -> PlaceOnAxis:
    """The place of a part along an axis of these dimensions. Only the outermost of them may be split. Raises
    InternalError otherwise."""
    own = [s for s in splits if s.dim in axis]
    if any(s.dim != axis[0] for s in own):
        raise InternalError(f"parts of `{operator.name}` along an inner factor are not consecutive")
    inner = _size(operator, axis[1:])
    offsets = tuple(Offset(s.coordinate, s.digit.scaled(inner)) for s in own)
    return PlaceOnAxis(offsets, _size(operator, axis))


def _before(offsets: tuple[Offset, ...]) -> tuple[Offset, ...]:
    """The offsets that give the number of parts before one, from those of its first position. With one index it is the
    part's number, also of unequal parts."""
    if len(offsets) == 1:
        return (Offset(offsets[0].coordinate, Digit(offsets[0].digit.parts)),)
    least = min(o.digit.stride for o in offsets)
    return tuple(Offset(o.coordinate, replace(o.digit, stride=o.digit.stride // least)) for o in offsets)


def _queries(operator: Operator, splits: tuple[OpSplit, ...], over: tuple[Split, ...], axes: Axes) -> PartRuns | None:
    """The positions of the queries on each device, if those of the keys, which the splits `over` cut, do not say them;
    None also where the kernel needs no positions, as each query sees all keys."""
    windows = [d.window for d in (operator.dims[n] for s in over for n in s.dims) if d.window is not None]
    own = tuple(s for s in splits if isinstance(s, Split) and any(s.dim == window.of for window in windows))
    if not own or all(s.also is not None for s in (*own, *over)):
        return None
    operand = next(o for o in operator.inputs if o.carries(own[0].dim))
    first, *inner = (name for name, _ in axes if name in names_along(own))
    return PartRuns(Axis(first, tuple(inner)), _region(operator, operand, own, axes).runs)


def _region(operator: Operator, operand: Operand, splits: tuple[Split, ...], axes: Iterable[tuple[str, int]]) -> Region:
    """The positions that each part has along the split axis of an operand, in the order of the devices on these
    axes."""
    number, axis = next((n, a) for n, a in enumerate(operand.axes) if not {*splits[0].dims}.isdisjoint(a))
    cutting = names_along(splits)
    counts = {name: n for name, n in axes if name in cutting}

    sizes = tuple(operator.dims[d].size for d in axis)

    def kept(d: int, size: int, device: dict[str, int]) -> Runs:
        runs: Runs = ((0, size),)
        for split in splits:
            part = 0
            for name in names_of(split.coordinate):
                part = part * counts[name] + device[name]
            runs = shared(runs, split.digit.runs(size, part)) if d in split.dims else runs
        return runs

    devices = (dict(zip(counts, at, strict=True)) for at in itertools.product(*map(range, counts.values())))
    of_all = ([(size, kept(d, size, device)) for d, size in zip(axis, sizes, strict=True)] for device in devices)
    return Region(number, sizes, tuple(map(on_axis, of_all)))
