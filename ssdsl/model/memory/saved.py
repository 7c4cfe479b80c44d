"""The tensors of an operator that autograd keeps for its backward, and those that its kernel of parts sends."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.memory.observed import SavedShapes
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.ops.op import MEASURED, PartKernel, SavedRule
from ssdsl.model.ops.reader import Reader, kernel_dims


def saved(operator: Operator, graph: Graph, sizes: Sequence[int] | None = None, function: str | None = None) -> Saved:
    """The tensors that autograd keeps of a call until its backward has run; none if no gradient flows.

    `sizes` are the local sizes of the operator's dimensions, by default the full ones. A kernel of parts has its own
    rule: that of the kernel with this `function` ("": no kernel), by default that of the row's kernel if the dimensions
    that it combines are split. Weights are named like any operand. The tensors are those that PyTorch's CPU kernels
    keep, without Python scalars.
    """
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    reader = Reader(operator, graph, [d.size for d in operator.dims] if sizes is None else sizes)
    op = operator.row
    rule, used = op.saved, None
    for kernel in (k for k in (op.ring, op.kernel) if k is not None):
        is_split = any(map(reader.is_split, kernel_dims(operator, *kernel.axes)))
        if is_split if function is None else kernel.function == function:
            rule, used = kernel.saved, kernel
    return _by(rule, reader, used)


def saved_when_fused(operator: Operator, graph: Graph, sizes: Sequence[int]) -> Saved:
    """The tensors that autograd saves for an operator's backward if a GPU computes it by a fused kernel."""
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    op = operator.row
    return _by(op.saved if op.fused is None else op.fused, Reader(operator, graph, sizes))


def _by(rule: SavedRule, reader: Reader, kernel: PartKernel | None = None) -> Saved:
    found = None if rule is MEASURED else reader.named(rule) if isinstance(rule, str) else rule(reader)
    if found is not None:
        return found
    operator, shapes = reader.operator, local_shapes(reader, kernel)
    return observed(reader, shapes, kernel).at(shapes, operator)


def local_shapes(reader: Reader, kernel: PartKernel | None) -> list[tuple[int, ...]]:
    """The shapes of a part's inputs and outputs, and that of a kernel's number of parts."""
    operands = (*reader.operator.inputs, *reader.operator.outputs)
    parts = [] if kernel is None else [(reader.parts(*kernel.axes),)]
    return [*(reader.shape(o.axes) for o in operands), *parts]


def observed(reader: Reader, shapes: Sequence[tuple[int, ...]], kernel: PartKernel | None) -> SavedShapes:
    """The tensors that the call, or its kernel of parts, saved and sent when it ran at capture. It runs once more now
    if that does not show it."""
    operator, seen = reader.operator, reader.operator.observed
    if seen is not None:
        if kernel is None and seen.whole is not None and not any(map(reader.is_split, range(len(operator.dims)))):
            return seen.whole
        parts = seen.parts if kernel is None else seen.kernel
        if parts is not None and (found := parts.at(shapes)) is not None:
            return found
    from ssdsl.model.observe.saved import saved_by  # torch has to be asked once more

    return saved_by(operator, reader.graph, reader.sizes, kernel)


# -- collectives of a kernel of parts ----------------------------------------------------------------------------------


class LocalCollective(NamedTuple):
    """The kind of a collective, the bytes of the tensor that a part sends, and whether the kernel computes
    meanwhile."""

    kind: str
    size_bytes: int
    overlaps: bool = False


def collectives(reader: Reader, kernel: PartKernel, parts: int, *, back: bool) -> Iterator[LocalCollective]:
    """The collectives in a kernel's forward, or `back` in its backward: as observed, or as its row says, for each
    element of the dimensions of the first operand that are neither fixed nor combined."""
    operator, graph = reader.operator, reader.graph
    given = kernel.backward if back else kernel.forward
    if given is MEASURED:
        shapes = [*local_shapes(reader, None), (parts,)]
        found = observed(reader, shapes, kernel)
        yield from (LocalCollective(e.what, e.bytes_at(shapes)) for e in (found.backward if back else found.forward))
        return
    first = operator.inputs[0]
    free = [d for axis in first.axes for d in axis if not operator.dims[d].combined and not operator.dims[d].fixed]
    itemsize = graph.values[first.value].itemsize
    for c in given(operator, parts) if callable(given) else given:
        each = math.prod(reader.sizes[d] for d in (*free, *c.has) if d not in c.lacks)
        yield LocalCollective(c.kind, c.numbers * each * max(itemsize, c.width), c.overlaps)
