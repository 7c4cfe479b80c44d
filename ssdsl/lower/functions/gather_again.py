"""Marks the conversions whose results backward makes again: parts behind earlier ones, `recompute OPS.gathers`, and
frozen weights in parts.

A slice that reads itself behind all slices before it (keys and values of causal attention) never keeps the joined
tensor: the slices are kept once, by the tasks that made them, and joining them moves nothing between devices. So slices
take as much memory as the uncut sequence.

Of gathers, autograd then keeps the device's own part, which its producer mostly keeps anyway, instead of the gathered
value. Megatron-LM does this for the inputs of matrix products, with sequence parallelism (Korthikanti et al. 2022,
section 4.2.2). A value is gathered again if only operators that the plan names keep it. These run by their own call,
not by a kernel of the runtime, so either all devices of a group keep the value, or none. Where backward runs in halves
the value is kept: otherwise both halves would gather it.
"""

from collections.abc import Collection, Iterator

from ssdsl.ir.comm import AllGather, Exchange, Step
from ssdsl.ir.function import Backward, Conversion, Function, Instr, OpPart, Section, reads_of, saved_names
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import views_of
from ssdsl.lower.stages import Formed
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import State
from ssdsl.record import replace
from ssdsl.runtime.layout.regions import shared


def gather_again(lowering: Formed) -> Formed:
    """Sets `again` of those conversions."""
    plan = lowering.plan
    asked = frozenset(n for n, record in plan.operators.items() if record.regathers is not None)
    parted = {w for shard in plan.state.shards if shard.state is State.WEIGHTS for w in shard.weights}
    frozen = frozenset(p.weight for p in lowering.params if not p.trained and p.weight in parted)
    functions = tuple(_marked(f, asked, frozen, lowering.graph) for f in lowering.functions)
    return replace(lowering, functions=functions)


def _marked(function: Function, asked: frozenset[str], frozen: frozenset[str], graph: Graph) -> Function:
    extends = any(i.producer == function.number for i in function.inputs)
    gathers = bool(asked or frozen) and function.backward is Backward.WHOLE
    if function.backward is Backward.NONE or not (extends or gathers):
        return function
    found = _gathers(function, asked, frozen, graph) if gathers else frozenset[Name]()

    def marked(instr: Instr) -> Instr:
        is_again = isinstance(instr, Conversion) and (instr.result.name in found or is_extended(instr))
        return replace(instr, again=True) if is_again else instr

    sections = (s if s.recompute else replace(s, body=tuple(map(marked, s.body))) for s in function.sections)
    return replace(function, sections=tuple(sections))


def _gathers(function: Function, asked: frozenset[str], frozen: frozenset[str], graph: Graph) -> frozenset[Name]:
    """The gathered values that backward gathers again."""
    weights = {p.var.name for p in function.parameters if p.var.name.value in frozen}
    base = views_of(function, graph)
    outputs = {base.get(o.name, o.name) for o in function.outputs}
    read = {base.get(n, n) for _, n in function.kept()}

    def kept_only(by: Collection[str]) -> set[Name]:
        others = (n for s in function.sections for i in s.body for n in _kept_by_others(s, i, by))
        return read - outputs - {base.get(n, n) for n in others}

    of_plan = kept_only(asked) if asked else set[Name]()
    of_weights = kept_only(graph.by_name) if weights else set[Name]()
    moved = (i for i in function.body() if isinstance(i, Conversion) and _only_gathers(i))
    chosen = ((i, of_weights if i.source in weights else of_plan if is_gathered(i) else ()) for i in moved)
    return frozenset(i.result.name for i, values in chosen if i.result.name in values)


def is_extended(instr: Conversion) -> bool:
    """Whether a conversion joins the running part behind earlier ones."""
    return isinstance(instr.forward[0], Exchange) and instr.forward[0].in_time if instr.forward else False


def is_gathered(instr: Conversion) -> bool:
    """Whether a conversion gathers parts of a value that has a gradient, and does nothing else."""
    return _only_gathers(instr) and instr.result.gradient is not None


def _only_gathers(instr: Conversion) -> bool:
    return bool(instr.forward) and all(map(_joins, instr.forward)) and not instr.also


def _joins(step: Step) -> bool:
    """Whether a device has what it had, and parts of others: of regions, too."""
    if not isinstance(step, Exchange):
        return isinstance(step, AllGather)
    have, need = step.source.at or (), step.target.at or ()
    return not (step.sums or step.in_time) and all(shared(h, n) == h for h, n in zip(have, need, strict=True))


def _kept_by_others(section: Section, instr: Instr, asked: Collection[str]) -> Iterator[Name]:
    """Values that an instruction keeps in any case: all that a recomputed section, a conversion or a kernel of the
    runtime reads, and what an operator saves that the plan does not name."""
    if section.recompute or not isinstance(instr, OpPart) or instr.kernel.function:
        yield from reads_of(instr)
    elif instr.operator not in asked:
        yield from saved_names(instr, instr.saved)
