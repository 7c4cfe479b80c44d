"""Divides functions into sections; says which gradients backward leaves for later.

A section is a run of operators of one layer that are recomputed together, or not at all. It becomes one function of the
generated code; if it is recomputed, the runtime checkpoints that function. Operators of one checkpoint are one section
also with others between, if these do not read its results: of `silu(gate(x)) * up(x)` the product `up(x)` moves ahead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    Instr,
    OpPart,
    Section,
    Side,
    Write,
    reads_of,
    results_of,
)
from ssdsl.ir.value import Name
from ssdsl.lower.functions.own_statistics import with_own_statistics
from ssdsl.lower.stages import Assembled
from ssdsl.model.dims.layers import layers_by_path
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Mark, Plan
from ssdsl.record import Record, replace

SectionKey = tuple[str, Mark | None, bool]  # an operator's layer, its checkpoint, whether the host keeps its values


class _Facts(Record):
    """Facts of the graph and the plan that all functions share."""

    graph: Graph
    layers: dict[str, str]  # by an operator's path
    plan: Plan
    alone: frozenset[str]


def form_sections(lowering: Assembled) -> Assembled:
    """Replaces the functions by their finished forms.

    Of two layers, with `recompute model.gelu`:

        +   section recompute
        +   section
        +   section recompute
        +   section
    """
    graph = lowering.graph
    facts = _Facts(graph, layers_by_path(graph), lowering.plan, graph.alone)
    return replace(lowering, functions=tuple(_formed(f, facts) for f in lowering.functions))


def _formed(function: Function, facts: _Facts) -> Function:
    function = with_own_statistics(function, facts.graph, facts.plan)
    sides, before, wgrad_only = _sides(function, facts)
    sections = tuple(
        replace(s, body=tuple([_with_sides(i, sides) for i in s.body])) for s in _sections(function, facts, before)
    )
    outputs = tuple(replace(o, wgrad_only=o.name in wgrad_only) for o in function.outputs)
    return replace(function, sections=sections, outputs=outputs)


def _with_sides(instr: Instr, sides: dict[str, tuple[Side, ...]]) -> Instr:
    if not isinstance(instr, OpPart) or instr.operator not in sides:
        return instr
    return replace(instr, sides=sides[instr.operator])


# -- sections ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    layer: str
    checkpoint: Mark | None
    on_host: bool = False
    body: list[Instr] = field(default_factory=list)

    @property
    def learns(self) -> bool:
        """Whether there is a backward that could recompute it."""
        return any(isinstance(i, OpPart) and i.learns for i in self.body)


def _sections(function: Function, facts: _Facts, before: frozenset[str]) -> tuple[Section, ...]:
    """The sections of a function: operators in order, each after the conversions that it is the first to read.
    `before` are the operators on weights alone: they are not recomputed."""

    def place(op: OpPart) -> SectionKey:
        record = facts.plan.of(op.operator)
        is_task = function.again is not None and record.within is None  # then that is its checkpoint
        checkpoint = record.checkpoint if op.operator not in before and not is_task else None
        on_host = record.offload is not None and checkpoint is None and function.backward is not Backward.NONE
        return facts.layers[facts.graph.by_name[op.operator].path], checkpoint, on_host

    front = _shared(function, place)
    conversions = [i for i in function.body() if isinstance(i, Conversion)]
    drafts = [_Draft("", None, body=[i for i in conversions if i.result.name in front])]
    waiting = {i.result.name: i for i in conversions if i.result.name not in front}
    for op in (i for i in function.body() if isinstance(i, OpPart | Write)):
        if isinstance(op, Write):  # in the section that computed its value
            drafts[-1].body.extend([*_pulled(op.source, waiting), op])
            continue
        layer, checkpoint, on_host = place(op)
        if (drafts[-1].layer, drafts[-1].checkpoint, drafts[-1].on_host) != (layer, checkpoint, on_host):
            drafts.append(_resumed(drafts, layer, checkpoint) or _Draft(layer, checkpoint, on_host))
        for read in op.reads:
            if read in waiting:
                drafts[-1].body.extend(_pulled(read, waiting))
        drafts[-1].body.append(op)
    if waiting:  # conversions of values that only leave the function
        last = _Draft("", None)
        for name in list(waiting):
            last.body.extend(_pulled(name, waiting))
        drafts.append(last)
    return tuple(
        Section(d.layer, d.checkpoint is not None and d.learns, tuple(d.body), on_host=d.on_host and d.learns)
        for d in drafts
        if d.body
    )


def _resumed(drafts: list[_Draft], layer: str, checkpoint: Mark | None) -> _Draft | None:
    """Takes the draft of a checkpoint out of `drafts`, to go on with it behind others of its layer; None if there is
    none, or if one of these reads its results."""
    if checkpoint is None:
        return None
    read: set[Name] = set()
    for number in range(len(drafts) - 1, -1, -1):
        draft = drafts[number]
        if draft.layer != layer:
            return None
        if draft.checkpoint == checkpoint:
            made = (v.name for instr in draft.body for v in results_of(instr))
            return drafts.pop(number) if read.isdisjoint(made) else None
        read.update(name for instr in draft.body for name in reads_of(instr))
    return None


def _pulled(name: Name, waiting: dict[Name, Conversion]) -> list[Instr]:
    """Takes from `waiting` the conversions that lead to a value; returns them in order."""
    instr = waiting.pop(name, None)
    return [] if instr is None else [*(i for read in reads_of(instr) for i in _pulled(read, waiting)), instr]


def _shared(function: Function, place: Callable[[OpPart], SectionKey]) -> frozenset[Name]:
    """Conversions of values from outside the function that several sections read: they come first, once."""
    made = {v.name for op in function.operators() for v in op.results}
    conversions = {i.result.name: i for i in function.body() if isinstance(i, Conversion)}
    readers: dict[Name, set[SectionKey]] = {}  # by conversion: the readers of it, or of one that it leads to
    outside: set[Name] = set()
    for op in function.operators():
        for read in (r for r in op.reads if r in conversions):
            chain, ends = _leading_to(read, conversions)
            for name in chain:
                readers.setdefault(name, set()).add(place(op))
            outside.update(chain if made.isdisjoint(ends) else ())
    return frozenset(name for name in outside if len(readers[name]) > 1)


def _leading_to(name: Name, conversions: dict[Name, Conversion]) -> tuple[list[Name], list[Name]]:
    """The conversions that lead to a value, and the values with which they begin."""
    if name not in conversions:
        return [], [name]
    found = [_leading_to(read, conversions) for read in reads_of(conversions[name])]
    return [name, *(n for chain, _ in found for n in chain)], [n for _, ends in found for n in ends]


# -- backward in halves ------------------------------------------------------------------------------------------------


def _sides(function: Function, facts: _Facts) -> tuple[dict[str, tuple[Side, ...]], frozenset[str], frozenset[Name]]:
    """The sides of the operands of each operator that reads both weights and what depends on data; the operators on
    weights alone, which are not recomputed, as their backward runs in the second half; and the outputs that follow from
    weights alone. All empty where backward does not run in halves."""
    if function.backward not in (Backward.HALVES, Backward.DGRAD):
        return {}, frozenset(), frozenset()
    variables, of_weights = function.variables(), weight_side(function, facts.alone)
    sides: dict[str, tuple[Side, ...]] = {}
    before = []

    def side(name: Name) -> Side:
        if variables[name].gradient is None:
            return Side.FIXED
        return Side.WEIGHT if name in of_weights else Side.ACTIVATION

    for instr in function.operators():
        if of_weights.issuperset(instr.reads):
            before.append(instr.operator)
        elif Side.WEIGHT in (found := tuple(map(side, instr.reads))):
            sides[instr.operator] = found
    leaving = frozenset(o.name for o in function.outputs if o.name in variables and side(o.name) is Side.WEIGHT)
    return sides, frozenset(before), leaving


def weight_side(function: Function, alone: frozenset[str]) -> frozenset[Name]:
    """A function's weights, and the values that follow from weights alone; `alone` are the graph's."""
    found = {p.var.name for p in function.parameters}
    found |= {p.var.name for p in function.prepared if p.var.name.value in alone}
    for instr in function.body():
        if found.issuperset(reads_of(instr)):
            found.update(v.name for v in results_of(instr))
    return frozenset(found)
