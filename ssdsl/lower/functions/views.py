"""Which of a function's local values look into the memory of others."""

from collections.abc import Mapping

from ssdsl.ir.function import Function
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator
from ssdsl.model.storage import Storage, aliases


def views_of(function: Function, operators: Mapping[str, Operator], places: Mapping[str, Storage]) -> dict[Name, Name]:
    """What operators make as views, each with the value that it looks into: an operator's or a conversion's result, or
    what enters the function."""
    found: dict[Name, Name] = {}
    for op in function.operators():
        operator = operators[op.operator]
        reads = dict(zip((o.value for o in operator.inputs), op.reads, strict=True))
        for output, read in aliases(operator, places).items():
            (name,) = (v.name for v in op.results if v.name.value == output)
            found[name] = found.get(reads[read], reads[read])
    return found
