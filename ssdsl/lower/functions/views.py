"""The local values of a function that are views of others: they share their memory."""

from collections.abc import Mapping

from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator
from ssdsl.model.memory.storage import Storage, aliases


def views_of(function: Function, operators: Mapping[str, Operator], places: Mapping[str, Storage]) -> dict[Name, Name]:
    """The results of operators that are views, each with the value that it is a view of. That one is no view itself: it
    is a result of an operator or a conversion, or enters the function."""
    found: dict[Name, Name] = {}
    for op in function.operators():
        for name, read in views_in(op, operators[op.operator], places).items():
            found[name] = found.get(read, read)
    return found


def views_in(op: OpPart, operator: Operator, places: Mapping[str, Storage]) -> dict[Name, Name]:
    """The results of a part of an operator that are views, each with the operand that it is a view of. A kernel of the
    runtime makes new tensors, also of an operator whose own call gives views."""
    if op.kernel.function:
        return {}
    reads = dict(zip((o.value for o in operator.inputs), op.reads, strict=True))
    names = {v.name.value: v.name for v in op.results}
    return {names[output]: reads[read] for output, read in aliases(operator, places).items()}
