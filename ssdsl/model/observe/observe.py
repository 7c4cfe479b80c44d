"""Adds to a graph the facts that torch shows of its calls.

Calls of one signature are observed once: those of torch's own operators in a process, as the next graph often has them
too; others in a graph, as a user may define them anew.
"""

from typing import Any

from ssdsl.model.capture.preserve import quiet
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.model.memory.observed import Observed, SavedByParts
from ssdsl.model.observe.layout import storages
from ssdsl.model.observe.overwritable import overwritable
from ssdsl.model.observe.saved import saved_by_kernel, saved_whole_and_by_parts
from ssdsl.model.ops.op import MEASURED, Op
from ssdsl.model.ops.reader import Reader, kernel_dims
from ssdsl.model.signatures import signature
from ssdsl.record import replace

Known = dict[tuple[Any, Op], Observed]  # by signature and row
_KNOWN: Known = {}


@quiet()  # once for all calls
def observed(graph: Graph) -> Graph:
    """The graph with the memory of its values, and with the signature and the observed facts of each operator."""
    graph = replace(graph, storages=storages(graph))
    own: Known = {}
    numbers: dict[Any, int] = {}
    operators = []
    for operator in graph.operators:
        known = _KNOWN if operator.target.startswith("aten::") else own
        called = signature(operator, graph)
        key, number = (called, operator.row), numbers.setdefault(called, len(numbers))
        if key not in known:
            known[key] = observe(operator, graph)
        operators.append(replace(operator, observed=known[key], signature=number))
    return replace(graph, operators=tuple(operators))


def observe(operator: Operator, graph: Graph) -> Observed:
    """The facts that torch shows of one call."""
    if operator.stage is Stage.CONSTANT:
        return Observed()
    results, gradients = overwritable(operator, graph) or (None, None)
    found = Observed(results, gradients, kernel=_by_kernel(operator, graph))
    saves = any(graph.values[o.value].differentiable for o in operator.outputs)
    if not saves or not _is_measured(operator, graph):
        return found
    whole, parts = saved_whole_and_by_parts(operator, graph)
    return replace(found, whole=whole, parts=parts)


def _by_kernel(operator: Operator, graph: Graph) -> SavedByParts | None:
    """The tensors that the kernel of parts of this call saves and sends; None if no plan can cut the call so, or its
    row says which they are."""
    kernel = operator.row.kernel
    if kernel is None or not kernel.is_measured:
        return None
    is_cut = any(not operator.dims[d].fixed for d in kernel_dims(operator, *kernel.axes))
    return saved_by_kernel(operator, graph, kernel) if is_cut else None


def _is_measured(operator: Operator, graph: Graph) -> bool:
    """Whether torch has to be asked what this call saves: its row does not say."""
    rule = operator.row.saved
    if callable(rule):
        return rule(Reader(operator, graph, [d.size for d in operator.dims])) is None
    return rule is MEASURED
