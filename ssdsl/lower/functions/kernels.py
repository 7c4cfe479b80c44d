"""Which kernel computes a part of an operator: its own call on slices, or one of the runtime's where that is not it."""

import math
from collections.abc import Iterator

from ssdsl.ir.function import CALL, Kernel, Offset, OpSplit, Split, WindowPart
from ssdsl.ir.value import Axis, Coordinate
from ssdsl.lower.operators.operand_types import is_inner, windows_on
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.ops.reader import kernel_dims, parameters
from ssdsl.model.ops.registry import row
from ssdsl.text.diagnostic import InternalError


def kernel_of(operator: Operator, splits: tuple[OpSplit, ...]) -> Kernel:
    """The kernel of a part with these splits."""
    if windows := tuple(_windows(operator, splits)):
        function = row(operator).windows.partition("(")[0]
        return Kernel(function, offsets=tuple(_inside(operator, splits)), windows=windows)
    own = row(operator)
    kernel = own.ring if any(isinstance(s, Split) and s.also is not None for s in splits) else own.kernel
    if kernel is None:
        return CALL
    dims = kernel_dims(operator, *kernel.axis)
    over = tuple(s for s in splits if isinstance(s, Split) and not {*s.dims}.isdisjoint(dims))
    if not over:
        return CALL
    axes = tuple(s.coordinate.name for s in over if isinstance(s.coordinate, Axis)) if "{group}" in kernel.call else ()
    offsets: tuple[Offset, ...] = ()
    if kernel.is_placed:
        tensors = zip(parameters(operator), operator.inputs, strict=True)
        split = next(o for name, o in tensors if name == kernel.axis[0])
        offsets = _offsets(operator, split, over)
    return Kernel(kernel.function, axes, offsets)


def _windows(operator: Operator, splits: tuple[OpSplit, ...]) -> Iterator[WindowPart]:
    """The axes of which a part reads windows."""
    for split in (s for s in splits if isinstance(s, Split) and not is_inner(operator, s)):
        results = split.regions(operator.dims[split.dim].size)
        for number, at in windows_on(operator, split):
            needs, size = tuple(run for (run,) in at), operator.dims[number].size
            yield WindowPart(split.coordinate, axis_of(operator, number), results, needs, size)


def _inside(operator: Operator, splits: tuple[OpSplit, ...]) -> Iterator[Offset]:
    """Where the part of a part begins that reads windows."""
    for split in (s for s in splits if isinstance(s, Split) and is_inner(operator, s)):
        if any(windows_on(operator, split)):
            yield Offset(split.coordinate, split.stride)


def axis_of(operator: Operator, number: int) -> int:
    """The axis of the first operand that has a dimension."""
    return next(axis for o in operator.inputs for axis, dims in enumerate(o.axes) if number in dims)


def first_of(operator: Operator, splits: tuple[OpSplit, ...]) -> tuple[Coordinate, ...]:
    """The coordinates of which only the first part adds the addend: those of a split that is summed over."""
    if not any(o.once for o in operator.inputs):
        return ()
    return tuple(s.coordinate for s in splits if isinstance(s, Split) and operator.summed(s.dim))


def _offsets(operator: Operator, operand: Operand, splits: tuple[Split, ...]) -> tuple[Offset, ...]:
    """Where a part begins along a split axis of an operand, which may be made of several factors."""
    axis = next(a for a in operand.axes if splits[0].dim in a)
    if any(s.dim != axis[0] for s in splits):
        raise InternalError(f"parts of `{operand.value}` along an inner factor are not consecutive")
    inner = math.prod(operator.dims[d].size for d in axis[1:])
    return tuple(Offset(s.coordinate, inner if s.sizes else s.stride * inner, s.sizes) for s in splits)
