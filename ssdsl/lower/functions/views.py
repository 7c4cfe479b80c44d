"""The local values of a function that are views of others: they share their memory."""

from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph


def views_of(function: Function, graph: Graph) -> dict[Name, Name]:
    """The results of operators that are views, each with the value that it is a view of. That one is no view itself: it
    is a result of an operator or a conversion, or enters the function."""
    found: dict[Name, Name] = {}
    for op in function.operators():
        for name, read in views_in(op, graph).items():
            found[name] = found.get(read, read)
    return found


def views_in(op: OpPart, graph: Graph) -> dict[Name, Name]:
    """The results of a part of an operator that are views, each with the operand that it is a view of. A kernel of the
    runtime makes new tensors, also of an operator whose own call gives views."""
    views = graph.views.get(op.operator)
    if op.kernel.function or views is None:
        return {}
    reads = dict(zip((o.value for o in graph.by_name[op.operator].inputs), op.reads, strict=True))
    names = {v.name.value: v.name for v in op.results}
    return {names[output]: reads[read] for output, read in views.items()}
