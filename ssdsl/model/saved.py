"""What autograd keeps: for every operator, which of its tensors wait for its backward."""

from collections.abc import Mapping, Sequence

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.ops.reader import Reader, kernel_dims
from ssdsl.model.ops.registry import row
from ssdsl.model.saved_tensors import Saved
from ssdsl.model.storage import Storage


def saved(operator: Operator, graph: Graph, places: Mapping[str, Storage], sizes: Sequence[int] | None = None) -> Saved:
    """What autograd keeps of a call until its backward has run; nothing where no gradient flows.

    `places` is what `storages` found; `sizes` are the local sizes of the operator's dimensions, by default all of them.
    Where a kernel of parts runs, it is the one that keeps. Weights are named like any operand. The truth is that of
    PyTorch's CPU kernels; Python scalars are not counted.
    """
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    reader = Reader(operator, graph, places, [d.size for d in operator.dims] if sizes is None else sizes)
    op = row(operator)
    rule = op.saved
    if op.kernel is not None and any(map(reader.is_split, kernel_dims(operator, *op.kernel.axis))):
        rule = op.kernel.saved
    return reader.named(rule) if isinstance(rule, str) else rule(reader)
