"""Counts the floating-point operations of a call's forward."""

import math
from collections.abc import Mapping, Sequence

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.graph import Dim
from ssdsl.model.ops.registry import row
from ssdsl.model.ops.typed_call import TypedCall


def flops(call: CapturedCall, tensors: Mapping[str, Tensor], dims: Sequence[Dim]) -> int:
    """FLOPs of a call: two for each multiply-add of a contraction, otherwise one for each element of the results.

    A matrix product of [n, k] and [k, m] has the dimensions n, k and m: 2 n k m.
    """
    op, typed = row(call), TypedCall(call, tensors)
    if op.flops is not None:
        return op.flops(typed)
    if op.contraction:
        return 2 * math.prod(d.size for d in dims)
    return sum(math.prod(t.shape) for t in typed.outputs)
