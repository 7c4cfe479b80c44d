"""Which kernel computes a part of an operator: its own call on slices, or one of the runtime's where that is not it."""

import math

from ssdsl.ir.function import CALL, Kernel, Offset, OpSplit, Split
from ssdsl.ir.value import Axis, Coordinate
from ssdsl.model.graph import Operand, Operator
from ssdsl.text.diagnostic import InternalError


def kernel_of(operator: Operator, splits: tuple[OpSplit, ...]) -> Kernel:
    """The kernel of a part with these splits."""
    own = tuple(s for s in splits if isinstance(s, Split))
    match operator.kind:
        case "embedding":
            rows = tuple(s for s in own if s.dim in operator.inputs[0].axes[0])
            if rows:
                return Kernel("embedding_part", offsets=_offsets(operator, operator.inputs[0], rows))
        case "batch_norm":
            over = _combined(operator, own)
            if over:
                return Kernel("batch_norm_parts", tuple(s.coordinate.name for s in over))
        case "cross_entropy_loss":
            over = _combined(operator, own)
            if over:
                offsets = _offsets(operator, operator.inputs[0], over)
                return Kernel("cross_entropy_parts", tuple(s.coordinate.name for s in over), offsets)
    return CALL


def first_of(operator: Operator, splits: tuple[OpSplit, ...]) -> tuple[Coordinate, ...]:
    """The coordinates of which only the first part adds the addend: those of a split that is summed over."""
    if not any(o.once for o in operator.inputs):
        return ()
    return tuple(s.coordinate for s in splits if isinstance(s, Split) and operator.summed(s.dim))


def _combined(operator: Operator, splits: tuple[Split, ...]) -> tuple[Split, ...]:
    return tuple(s for s in splits if operator.dims[s.dim].combined and isinstance(s.coordinate, Axis))


def _offsets(operator: Operator, operand: Operand, splits: tuple[Split, ...]) -> tuple[Offset, ...]:
    """Where a part begins along a split axis of an operand, which may be made of several factors."""
    axis = next(a for a in operand.axes if splits[0].dim in a)
    if any(s.dim != axis[0] for s in splits):
        raise InternalError(f"parts of `{operand.value}` along an inner factor are not consecutive")
    inner = math.prod(operator.dims[d].size for d in axis[1:])
    return tuple(Offset(s.coordinate, inner if s.sizes else s.stride * inner, s.sizes) for s in splits)
