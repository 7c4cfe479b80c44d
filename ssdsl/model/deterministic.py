"""Whether a program may be written: only where the model draws no random numbers."""

from ssdsl.model.graph import Graph
from ssdsl.model.trace_errors import RandomOperator
from ssdsl.text.diagnostic import PlanError


def check_deterministic(graph: Graph) -> None:
    """Raise PlanError for the kinds of operators that draw random numbers, the first of each."""
    first = {o.kind: o for o in reversed(graph.operators) if o.random}
    found = [o for o in graph.operators if first.get(o.kind) is o]
    if found:
        raise PlanError(*(RandomOperator(None, o.kind, o.path or "the model", o.source) for o in found))
