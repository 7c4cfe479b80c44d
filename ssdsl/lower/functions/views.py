"""The local values of a function that are views of others: they share their memory."""

from collections.abc import Mapping

from ssdsl.ir.function import Function
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator
from ssdsl.model.memory.storage import Storage, aliases


def views_of(function: Function, operators: Mapping[str, Operator], places: Mapping[str, Storage]) -> dict[Name, Name]:
    """The results of operators that are views, each with the value that it is a view of. That one is no view itself: it
    is a result of an operator or a conversion, or enters the function."""
    found: dict[Name, Name] = {}
    for op in function.operators():
        operator = operators[op.operator]
        reads = dict(zip((o.value for o in operator.inputs), op.reads, strict=True))
        for output, read in aliases(operator, places).items():
            (name,) = (v.name for v in op.results if v.name.value == output)
            found[name] = found.get(reads[read], reads[read])
    return found
