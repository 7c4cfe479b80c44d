"""Local sizes: how much of an operator, and of its tensors, is one device's share in one task."""

import math
from collections.abc import Sequence

from ssdsl.lower.cuts import LINEAR, OperatorCut
from ssdsl.lower.layout import Submesh
from ssdsl.lower.reshard import Step, StepKind
from ssdsl.model.graph import Operand, Operator


def local_sizes(operator: Operator, cuts: Sequence[OperatorCut]) -> list[int]:
    """The size of each of the operator's dimensions in one part (of unequal parts, the mean rounded up)."""
    sizes = [d.size for d in operator.dims]
    for c in cuts:
        if c.dim != LINEAR:
            sizes[c.dim] = -(-sizes[c.dim] // c.count)
    return sizes


def numel(operand: Operand, sizes: Sequence[int]) -> int:
    """The elements of a part of an operand."""
    return math.prod(sizes[d] for axis in operand.axes for d in axis)


def parts(cuts: Sequence[OperatorCut]) -> int:
    """Into how many parts an operator's work is cut."""
    return math.prod(c.count for c in cuts if c.dim != LINEAR)


GROWS = (StepKind.ALL_GATHER,)
SHRINKS = (StepKind.REDUCE_SCATTER, StepKind.SLICE)
SILENT = (StepKind.SLICE, StepKind.KEEP_FIRST)


def payloads(steps: Sequence[Step], submesh: Submesh, elements: int, *, at_end: bool) -> list[tuple[Step, int]]:
    """The steps that communicate, each with the elements of the tensor that it makes whole, or takes whole.

    `elements` is the size of the local tensor before the steps, or behind them (`at_end`).
    """
    sizes = dict(submesh.axes)
    ways = [math.prod(sizes[a] for a in step.axes) for step in steps]
    if at_end:
        for step, n in zip(reversed(steps), reversed(ways), strict=True):
            elements = elements // n if step.kind in GROWS else elements * n if step.kind in SHRINKS else elements
    found = []
    for step, n in zip(steps, ways, strict=True):
        after = elements * n if step.kind in GROWS else elements // n if step.kind in SHRINKS else elements
        whole = elements * n if step.kind is StepKind.ALL_TO_ALL else max(elements, after)
        if step.kind not in SILENT:
            found.append((step, whole))
        elements = after
    return found
