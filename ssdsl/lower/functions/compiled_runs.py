"""Finds the runs of operators that torch.compile makes kernels of: those of a section between its communication.

A run is a function of tensors alone: no operator in it communicates, and none needs the device's place on the mesh, or
the part's index in time. Those that do, and those whose sizes or branches depend on numbers, end a run. An instruction
that ends one but reads nothing of it goes in front of it, a write of a buffer behind it, so that runs are long:

    take(x), layer_norm, take(mask), softmax     is     take(x), take(mask), [layer_norm, softmax]

Where backward is in halves, operators on activations and weights are called one by one, and those on weights alone
belong to the second half: only operators between them are in runs.
"""

from collections.abc import Iterator

from ssdsl.ir.function import Backward, Function, Instr, OpPart, Section, Write, reads_of
from ssdsl.ir.program import Kernels
from ssdsl.ir.value import Name
from ssdsl.lower.functions.form_sections import weight_side
from ssdsl.lower.functions.views import is_view
from ssdsl.lower.stages import Assembled
from ssdsl.model.graph import Graph, Operator
from ssdsl.record import Record, replace

FEWEST = 2  # kernels: a run of one gains nothing, and its call takes longer


def compiled_runs(lowering: Assembled) -> Assembled:
    """Sets `compiled` of sections, if kernels are to be compiled, and puts their instructions in order.

    Of layers between which nothing is sent:

        -   section
        +   section compiled 0..8
    """
    if lowering.kernels is not Kernels.COMPILED:
        return lowering
    graph = lowering.graph
    return replace(lowering, functions=tuple(_with_runs(f, graph) for f in lowering.functions))


class _Excluded(Record):
    """No compiled operator reads `ragged` values, which have as many rows as the data says, or `weights` alone: values
    that follow from weights, with a backward in halves."""

    weights: frozenset[Name]
    ragged: frozenset[str]


def _with_runs(function: Function, graph: Graph) -> Function:
    in_halves = function.backward in (Backward.HALVES, Backward.DGRAD)
    excluded = _Excluded(weight_side(function, graph.alone) if in_halves else frozenset(), graph.ragged)
    return replace(function, sections=tuple(_in_runs(s, excluded, graph) for s in function.sections))


def _in_runs(section: Section, excluded: _Excluded, graph: Graph) -> Section:
    body: list[Instr] = []
    runs: list[tuple[int, int]] = []
    opened: list[OpPart] = []
    writes: list[Instr] = []  # of the open run's results

    def close() -> None:
        if sum(not is_view(op, graph) for op in opened) >= FEWEST:
            runs.append((len(body), len(body) + len(opened)))
        body.extend([*opened, *writes])
        opened.clear()
        writes.clear()

    for instr in section.body:
        made = {v.name for op in opened for v in op.results}
        made.update(r for op in opened for r in op.reads if r.value in graph.running)  # which it may change
        if isinstance(instr, OpPart) and _is_compiled(instr, graph.by_name[instr.operator], excluded, made):
            opened.append(instr)
        elif made.isdisjoint(reads_of(instr)):
            body.append(instr)
        elif isinstance(instr, Write):
            writes.append(instr)
        else:
            close()
            body.append(instr)
    close()
    return replace(section, body=tuple(body), compiled=tuple(runs))


def _is_compiled(op: OpPart, operator: Operator, excluded: _Excluded, made: set[Name]) -> bool:
    """Whether an operator may be in a run whose operators have `made` these values."""
    kernel = op.kernel
    is_local = not (kernel.axes or kernel.offsets or kernel.before or kernel.windows or kernel.places)
    if not is_local or op.sides is not None or not operator.row.compiles:
        return False
    if any(r.value in excluded.ragged for r in op.reads) or excluded.weights.issuperset(op.reads):
        return False
    # an addend of the first part alone is chosen in front of the run
    return not op.first or made.isdisjoint(_once(op, operator))


def _once(op: OpPart, operator: Operator) -> Iterator[Name]:
    return (name for name, operand in zip(op.reads, operator.inputs, strict=True) if operand.once)
