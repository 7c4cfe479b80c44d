"""What autograd keeps: for every operator, which of its tensors wait for its backward."""

from collections.abc import Mapping, Sequence

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.ops.op import SavedRule
from ssdsl.model.ops.reader import Reader, kernel_dims
from ssdsl.model.ops.registry import row
from ssdsl.model.saved_tensors import Saved
from ssdsl.model.storage import Storage


def saved(
    operator: Operator,
    graph: Graph,
    places: Mapping[str, Storage],
    sizes: Sequence[int] | None = None,
    function: str | None = None,
) -> Saved:
    """What autograd keeps of a call until its backward has run; nothing where no gradient flows.

    `places` is what `storages` found; `sizes` are the local sizes of the operator's dimensions, by default all of them.
    A kernel of parts keeps what it says: that of this `function` (none if it is empty), by default the row's `kernel`
    if the dimensions that it combines are split. Weights are named like any operand. The truth is that of PyTorch's CPU
    kernels; Python scalars are not counted.
    """
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    reader = Reader(operator, graph, places, [d.size for d in operator.dims] if sizes is None else sizes)
    op = row(operator)
    rule = op.saved
    for kernel in (k for k in (op.ring, op.kernel) if k is not None):
        is_split = any(map(reader.is_split, kernel_dims(operator, *kernel.axis)))
        if is_split if function is None else kernel.function == function:
            rule = kernel.saved
    return _by(rule, reader)


def saved_when_fused(operator: Operator, graph: Graph, places: Mapping[str, Storage], sizes: Sequence[int]) -> Saved:
    """The same of an operator that GPUs have a fused kernel for."""
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    op = row(operator)
    return _by(op.saved if op.fused is None else op.fused, Reader(operator, graph, places, sizes))


def _by(rule: SavedRule, reader: Reader) -> Saved:
    return reader.named(rule) if isinstance(rule, str) else rule(reader)
