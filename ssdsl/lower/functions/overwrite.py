"""Says which collectives may work in place: on a value, or on its gradient.

They may if nothing else reads the tensor and autograd has not kept it. Inputs of a recomputed section are kept.

In a compiled run (`Section.compiled`) torch decides which tensors backward keeps, and makes one operator of two that
compute the same: two results may then be one tensor. So an operator there must also be the only one in its run to read
some operand that comes from outside and that its backward needs: a product has its weight. No other operator computes
the same then, and neither does another's backward.
"""

from collections.abc import Callable

from ssdsl.ir.comm import AllReduce
from ssdsl.ir.function import Conversion, Function, Instr, OpPart
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import views_in
from ssdsl.lower.stages import Assembled
from ssdsl.model.graph import Graph
from ssdsl.model.memory.observed import OWN_CALL, overwritable
from ssdsl.record import replace

Free = Callable[[InstrPlace], tuple[frozenset[str], frozenset[str]]]
NONE = frozenset[str](), frozenset[str]()


def overwrite(lowering: Assembled) -> Assembled:
    """Sets `in_place` of conversions.

    Of a product with a split sum:

        -     %linear_2@1 = all_reduce<tp>(64) %linear_2 : f32[8, 8]
        +     %linear_2@1 = all_reduce_<tp>(64) %linear_2 : f32[8, 8]
    """
    return replace(lowering, functions=tuple(_with_overwrites(f, lowering.graph) for f in lowering.functions))


def _with_overwrites(function: Function, graph: Graph) -> Function:
    def free(place: InstrPlace) -> tuple[frozenset[str], frozenset[str]]:
        """The results of an instruction that may be overwritten, and the operands whose gradients may be."""
        instr = function.at(place)
        if not isinstance(instr, OpPart) or instr.kernel.function not in OWN_CALL:
            return NONE
        operator = graph.by_name[instr.operator]
        return overwritable(operator) if operator.row.fresh and _is_unique(function, place, instr, graph) else NONE

    sections = []
    for number, section in enumerate(function.sections):
        body = tuple([_finished(instr, function, number, free) for instr in section.body])
        sections.append(replace(section, body=body))
    return replace(function, sections=tuple(sections))


def _finished(instr: Instr, function: Function, number: int, free: Free) -> Instr:
    if not isinstance(instr, Conversion) or not any(in_place := _in_place(instr, function, number, free)):
        return instr
    return replace(instr, in_place=in_place)


def _in_place(instr: Conversion, function: Function, number: int, free: Free) -> tuple[bool, bool]:
    """Whether the first step of a conversion in section `number` may work in place on the value, and on its
    gradient."""
    source, name, uses = instr.source, instr.result.name, function.uses
    maker, after = uses.makers.get(source), uses.readers.get(name, ())
    return (
        isinstance(next(iter(instr.forward), None), AllReduce)
        and maker is not None
        and source not in uses.outputs
        and len(uses.readers[source]) == 1
        and (maker.section == number or not function.sections[number].recompute)
        and source.value in free(maker)[0],
        isinstance(next(iter(instr.backward), None), AllReduce)
        and bool(after)
        and name not in uses.outputs
        and all(place.section == number and name.value in free(place)[1] for place in after),
    )


def _is_unique(function: Function, place: InstrPlace, op: OpPart, graph: Graph) -> bool:
    """Whether an operator is in no compiled run, or no other one in its run can compute the same."""
    section = function.sections[place.section]
    run = section.run_at(place.instr)
    if run is None:
        return True
    readers: dict[Name, int] = {}
    views: dict[Name, Name] = {}
    made: set[Name] = set()
    for other in (i for i in section.body[slice(*run)] if isinstance(i, OpPart)):
        views |= views_in(other, graph)
        made.update(v.name for v in other.results)
        for read in dict.fromkeys(other.reads):
            readers[read] = readers.get(read, 0) + 1

    def is_own(name: Name) -> bool:
        if readers[name] > 1:
            return False
        return is_own(views[name]) if name in views else name not in made

    return any(is_own(op.reads[n]) for n in op.saved.inputs)
