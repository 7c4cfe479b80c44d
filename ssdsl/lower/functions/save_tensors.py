"""What autograd saves of each operator for its backward: torch is asked, once for each distinct call.

An operator whose results get no gradient has no backward, and the program runs it without autograd: what the model
computes under `no_grad` or detaches saves nothing, whatever it reads.
"""

from collections.abc import Mapping
from dataclasses import replace

from ssdsl.ir.function import Backward, Function, Instr, Op, Split
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.operand_types import is_inner, windows_on
from ssdsl.model.graph import Operator
from ssdsl.model.saved import saved
from ssdsl.model.storage import Storage
from ssdsl.plan.regions import lengths_of


def save_tensors(lowering: Lowering) -> Lowering:
    """Adds to every operator that has a backward what its part saves."""
    places = lowering.graph.storages
    operators = lowering.graph.by_name
    functions = tuple(
        f if f.backward is Backward.NONE else _saving(lowering, f, operators, places) for f in lowering.functions
    )
    return replace(lowering, functions=functions)


def _saving(
    lowering: Lowering, function: Function, operators: Mapping[str, Operator], places: Mapping[str, Storage]
) -> Function:
    def with_saved(instr: Instr) -> Instr:
        if not isinstance(instr, Op) or not instr.learns:
            return instr
        operator = operators[instr.operator]
        sizes = local_dims(operator, instr)
        return replace(instr, saved=saved(operator, lowering.graph, places, sizes, instr.kernel.function))

    sections = tuple(replace(s, body=tuple(map(with_saved, s.body))) for s in function.sections)
    return replace(function, sections=sections)


def local_dims(operator: Operator, op: Op) -> list[int]:
    """The local sizes of an operator's dimensions in a part, of unequal parts in the mean."""
    sizes = [d.size for d in operator.dims]
    for split in (s for s in op.splits if isinstance(s, Split)):
        for number, at in windows_on(operator, split) if not is_inner(operator, split) else ():
            sizes[number] = -(-sum(lengths_of(at)) // split.parts)
        for dim in split.dims:
            sizes[dim] = -(-sizes[dim] // split.parts)
    return sizes
