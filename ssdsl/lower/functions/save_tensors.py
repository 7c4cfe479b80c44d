"""What autograd saves of each operator for its backward: torch is asked, once for each distinct call.

An operator whose results get no gradient has no backward, and the program runs it without autograd: what the model
computes under `no_grad` or detaches saves nothing, whatever it reads.
"""

from dataclasses import replace

from ssdsl.ir.function import Backward, Function, Instr, Op, Split
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.operand_types import is_inner, windows_on
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.saved import saved
from ssdsl.model.saved_tensors import Saved
from ssdsl.plan.regions import lengths_of

Known = dict[tuple[int, tuple[int, ...], str], tuple[Operator, Saved]]  # by signature, local sizes and kernel


def save_tensors(lowering: Lowering) -> Lowering:
    """Adds to every operator that has a backward what its part saves."""
    known: Known = {}
    functions = tuple(
        f if f.backward is Backward.NONE else _saving(lowering.graph, f, known) for f in lowering.functions
    )
    return replace(lowering, functions=functions)


def _saving(graph: Graph, function: Function, known: Known) -> Function:
    def with_saved(instr: Instr) -> Instr:
        if not isinstance(instr, Op) or not instr.learns:
            return instr
        operator = graph.by_name[instr.operator]
        key = graph.signatures[operator.name], tuple(local_dims(operator, instr)), instr.kernel.function
        if key not in known:
            known[key] = operator, saved(operator, graph, graph.storages, key[1], key[2])
        like, found = known[key]
        return replace(instr, saved=found.of(dict(zip(_values(like), _values(operator), strict=True))))

    sections = tuple(replace(s, body=tuple(map(with_saved, s.body))) for s in function.sections)
    return replace(function, sections=sections)


def _values(operator: Operator) -> tuple[str, ...]:
    return tuple(o.value for o in (*operator.inputs, *operator.outputs))


def local_dims(operator: Operator, op: Op) -> list[int]:
    """The local sizes of an operator's dimensions in a part, of unequal parts in the mean."""
    sizes = [d.size for d in operator.dims]
    for split in (s for s in op.splits if isinstance(s, Split)):
        for number, at in windows_on(operator, split) if not is_inner(operator, split) else ():
            sizes[number] = -(-sum(lengths_of(at)) // split.parts)
        for dim in split.dims:
            sizes[dim] = -(-sizes[dim] // split.parts)
    return sizes
