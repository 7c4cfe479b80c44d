"""The collectives of a program: their axes and bytes, in each task and for each flat parameter.

They follow from the instructions alone: a recomputed section communicates again in backward, and so does a conversion
that is gathered again; a weight's gradient belongs to the second half of a split backward.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Exchange, Step, travels
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, Section, Write
from ssdsl.ir.param import (
    AllReduceGrads,
    ChunkGrads,
    CompletionStep,
    FlatParam,
    GatherGrads,
    ReduceScatterGrads,
    SumTiedGrads,
)
from ssdsl.ir.program import FlatAction, GatherParam, Program, ScatterGrads, StartReduce, WaitReduce
from ssdsl.ir.value import Name, Var, names_of
from ssdsl.lower.operators.operand_types import local_dims
from ssdsl.model.graph import ITEMSIZE, Operator, Origin
from ssdsl.model.memory.saved import collectives, saved_when_fused
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.memory.storage import Storage
from ssdsl.model.ops.reader import Reader
from ssdsl.plan.plan import Phase
from ssdsl.record import Record
from ssdsl.simulate.memory.regathered import Regathered, regathered
from ssdsl.simulate.memory.state import MIXED, StatePrecision


class SizedCollective(Record):
    """A collective of devices along `axes`. `size_bytes` is the size of the local tensor that an all_reduce sums, an
    all_gather returns, a reduce_scatter is given, or an all_to_all exchanges. `overlaps`: an operator that computes at
    the same time, and in which phase; None as the phase means that of the task. `exchange` says who sends what, if not
    all do alike."""

    kind: str
    axes: tuple[str, ...]
    size_bytes: int
    overlaps: tuple[OpPart, Phase | None] | None = None
    exchange: Exchange | None = None


@dataclass(slots=True)
class ProgramIndex:
    """An index of a program, and options of the simulation. `places` are the storages of values; `weights` the values
    that follow from weights alone; `stored` those that lie in the memory of a weight, a buffer or a constant.

    `fuses`: runs of operators are one kernel (`simulate/price/fusion.py`). `fuses_attention`: attention is one kernel,
    even if other operators are not. `overlaps_products`: the backward of matrix products computes while their
    collectives run. `state` says what training keeps of each weight."""

    program: Program
    fuses: bool = False
    state: StatePrecision = MIXED
    fuses_attention: bool = False
    overlaps_products: bool = False
    operators: dict[str, Operator] = field(init=False)
    places: dict[str, Storage] = field(init=False)
    weights: frozenset[str] = field(init=False)
    stored: frozenset[str] = field(init=False)
    _first: dict[int, Function] = field(default_factory=dict)  # by kind
    _variables: dict[int, dict[Name, Var]] = field(default_factory=dict)
    _products: dict[int, dict[Name, OpPart]] = field(default_factory=dict)
    _regathered: dict[int, Regathered] = field(default_factory=dict)
    _collectives: dict[tuple[int | None, Phase], tuple[SizedCollective, ...]] = field(default_factory=dict)

    @classmethod
    def on(cls, program: Program, cluster: Cluster, state: StatePrecision = MIXED) -> "ProgramIndex":
        """The index for devices of a cluster. On GPUs attention is one kernel in PyTorch, too."""
        return cls(program, cluster.fuses, state, not cluster.shares_cores, cluster.overlap.products)

    def __post_init__(self) -> None:
        self.fuses_attention |= self.fuses
        self.operators = self.program.graph.by_name
        self.places = self.program.graph.storages
        self.weights = self.program.graph.alone
        origins = {v.name: v.origin for v in self.program.graph.values.values()}
        lasting = (Origin.WEIGHT, Origin.BUFFER, Origin.CONSTANT)
        self.stored = frozenset(name for name, place in self.places.items() if origins[place.root] in lasting)

    def like(self, function: Function) -> Function:
        """The first function that is equal but for names and devices."""
        if function.kind is None:
            return function
        return self._first.setdefault(function.kind, function)

    def variables(self, function: Function) -> dict[Name, Var]:
        """The local values of a function."""
        if function.number not in self._variables:
            self._variables[function.number] = function.variables()
        return self._variables[function.number]

    def product_of(self, function: Function, name: Name) -> OpPart | None:
        """The last matrix product of a function that reads a local value; None if there is none."""
        if function.number not in self._products:
            products = (op for op in function.operators() if self.operators[op.operator].row.contraction)
            self._products[function.number] = {name: op for op in products for name in op.reads}
        return self._products[function.number].get(name)

    def regathered(self, function: Function) -> Regathered:
        """The gathers of a function that its backward repeats."""
        if function.number not in self._regathered:
            self._regathered[function.number] = regathered(function, self.program.flats, self.program.graph)
        return self._regathered[function.number]

    def collectives(self, function: Function, section: Section, phase: Phase) -> "tuple[SizedCollective, ...]":
        """The collectives of a section's instructions in a phase. They are found once for each kind, unless some
        overlap with an operator, which is one of this section."""
        key = section.kind, phase
        if key not in self._collectives:
            found = tuple(c for instr in section.body for c in of_instr(self, function, section, instr, phase))
            if section.kind is None or any(c.overlaps for c in found):
                return found
            self._collectives[key] = found
        return self._collectives[key]

    def saved_by(self, op: OpPart) -> Saved:
        """The tensors that autograd keeps of an operator; other ones if operators are fused."""
        operator = self.operators[op.operator]
        if not self.fuses_attention or not op.learns or op.kernel.axes or operator.row.fused is None:
            return op.saved
        return saved_when_fused(operator, self.program.graph, local_dims(operator, op.splits))


def size_bytes(var: Var) -> int:
    """The bytes of a local value."""
    return var.elements * ITEMSIZE.get(var.dtype, 4)


# -- tasks -------------------------------------------------------------------------------------------------------------


def of_task(facts: ProgramIndex, function: Function, phase: Phase) -> Iterator[SizedCollective]:
    """The collectives of a function in a phase, in the order of its instructions."""
    for number, section in enumerate(function.sections):
        yield from facts.collectives(function, section, phase)
        for flat in section.gathers:
            yield from of_gathers(facts, function, number, facts.program.flats[flat], phase)


def of_instr(
    facts: ProgramIndex, function: Function, section: Section, instr: Instr, phase: Phase
) -> Iterator[SizedCollective]:
    """The collectives of one instruction in a phase; a recomputed section repeats those of forward in backward.

    A value that backward gathers again (`instr.again`) arrives while the same product's gradient of its input is
    computed; a gradient is reduced while the product's gradient of its weight is computed.
    """
    forward = phase is Phase.FORWARD or (section.recompute and phase in (Phase.BACKWARD, Phase.DGRAD))
    match instr:
        case Conversion():
            size = ITEMSIZE.get(instr.result.dtype, 4)
            product = facts.product_of(function, instr.result.name) if facts.overlaps_products else None
            if forward:
                yield from _of_steps(instr.forward, size)
            elif instr.again and phase is Phase.BACKWARD:
                yield from _of_steps(instr.forward, size, (product, Phase.DGRAD) if product else None)
            if _is_backward_in(phase, is_weight=instr.source.value in facts.weights):
                overlaps = (product, Phase.WGRAD) if product and phase is Phase.BACKWARD else None
                yield from _of_steps(instr.backward, size, overlaps)
        case OpPart():
            yield from _of_kernel(facts, instr, phase, forward=forward)
        case Write():
            pass
        case _:
            assert_never(instr)


def _is_backward_in(phase: Phase, *, is_weight: bool) -> bool:
    """Whether the gradient of a value is computed in this phase; `is_weight`: the value follows from weights alone."""
    return phase is Phase.BACKWARD or phase is (Phase.WGRAD if is_weight else Phase.DGRAD)


def _of_steps(
    steps: tuple[Step, ...], itemsize: int, overlaps: tuple[OpPart, Phase | None] | None = None
) -> Iterator[SizedCollective]:
    for s in filter(travels, steps):
        exchange = s if isinstance(s, Exchange) else None
        yield SizedCollective(s.kind, s.axes, s.elements * itemsize, overlaps, exchange)


def _of_kernel(facts: ProgramIndex, op: OpPart, phase: Phase, *, forward: bool) -> Iterator[SizedCollective]:
    """The collectives inside a kernel of parts."""
    if not op.kernel.axes:
        return
    operator = facts.operators[op.operator]
    kernel = next((k for k in (operator.row.kernel, operator.row.ring) if k and k.function == op.kernel.function), None)
    if kernel is None:
        return
    reader = Reader(operator, facts.program.graph, local_dims(operator, op.splits))
    parts = math.prod(s.parts for s in op.splits if not {*op.kernel.axes}.isdisjoint(names_of(s.coordinate)))
    for back, runs in ((False, forward), (True, phase in (Phase.BACKWARD, Phase.DGRAD) and op.learns)):
        for c in collectives(reader, kernel, parts, back=back) if runs else ():
            yield SizedCollective(c.kind, op.kernel.axes, c.size_bytes, (op, None) if c.overlaps else None)


# -- flat parameters ---------------------------------------------------------------------------------------------------


def of_backward(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives that reduce the gradients of gathered weights in the backward of their section (ZeRO-3). `state`
    gives the dtype of gradients, by default that of the weights, here and below."""
    return _sized(flat, flat.completion.in_backward, (), state)


def of_action(action: FlatAction, flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives of an action on a flat parameter, but for the sum over the copies of a tied weight. If the last
    sum runs in the background (`completion.awaited`), its gathers run when it is awaited, all others at its start."""
    awaited = bool(flat.completion.awaited)
    match action:
        case ScatterGrads():
            return of_scatter(flat, state)
        case StartReduce():
            return (c for c in of_once(flat, state) if not (awaited and c.kind == "all_gather"))
        case WaitReduce():
            return (c for c in of_once(flat, state) if awaited and c.kind == "all_gather")
        case GatherParam():
            return of_updated(flat)


def of_scatter(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives after each backward (ZeRO-2)."""
    return _sized(flat, flat.completion.each, flat.sharded.weights, state)


def of_once(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives that complete the gradient after the last backward, on the flat parameter's own submesh."""
    return _sized(flat, flat.completion.once, flat.sharded.grads, state)


def _sized(
    flat: FlatParam, steps: Sequence[CompletionStep], over: tuple[str, ...], state: StatePrecision
) -> Iterator[SizedCollective]:
    """The collectives of steps that begin with the gradient sharded over the axes `over`. After a step that cuts the
    gradient, the next steps are smaller: over dp = 4, a reduce_scatter of 8 MB leaves 2 MB for the all_reduce over tp.
    """
    size, ways = flat.elements_over(over) * state.gradient_bytes(flat.dtype), dict(flat.submesh.axes)
    for step in steps:
        match step:
            case AllReduceGrads():
                yield SizedCollective("all_reduce", step.axes, size)
            case ReduceScatterGrads():
                yield SizedCollective("reduce_scatter", step.axes, size)
                size //= math.prod(ways[a] for a in step.axes)
            case ChunkGrads():
                size //= math.prod(ways[a] for a in step.axes)
            case GatherGrads():
                size *= math.prod(ways[a] for a in step.axes)
                yield SizedCollective("all_gather", step.axes, size)
            case SumTiedGrads():
                pass


def of_gather(flat: FlatParam) -> SizedCollective:
    """The gather of the weights that a section reads (ZeRO-3)."""
    return SizedCollective("all_gather", flat.sharded.weights, flat_bytes(flat))


def of_updated(flat: FlatParam) -> Iterator[SizedCollective]:
    """The gathers of updated weights: from the shards of the optimizer's state to those of the weights."""
    _, grads, optimizer = flat.sharded.levels
    for axes, over in ((optimizer, flat.sharded.grads), (grads, flat.sharded.weights)):
        if axes:
            yield SizedCollective("all_gather", axes, flat_bytes(flat, over))


def flat_bytes(flat: FlatParam, over: tuple[str, ...] = ()) -> int:
    """The local bytes of a flat parameter, sharded over some axes."""
    return flat.elements_over(over) * ITEMSIZE.get(flat.dtype, 4)


def is_reduced(flat: FlatParam) -> bool:
    """Whether gradients are completed on the flat parameter's own submesh."""
    return any(not isinstance(step, SumTiedGrads) for step in flat.completion.steps)


def of_gathers(
    facts: ProgramIndex, function: Function, section: int, flat: FlatParam, phase: Phase
) -> Iterator[SizedCollective]:
    """ZeRO-3's collectives for a flat parameter of a section (by its number): a gather in forward, and again where
    backward reads the weights; a reduction of their gradients to their owners, if they get any."""
    if phase is Phase.FORWARD:
        yield of_gather(flat)
    elif phase is not Phase.WGRAD:
        again = facts.regathered(function).again
        yield from [of_gather(flat)] * again.get((section, flat.number), 0)
    if phase in (Phase.BACKWARD, Phase.WGRAD) and learns_weights(facts, function, section, flat):
        yield from of_backward(flat, facts.state)


def learns_weights(facts: ProgramIndex, function: Function, section: int, flat: FlatParam) -> bool:
    """Whether the weights that a section gathers get a gradient: not under `no_grad`."""
    return (section, flat.number) in facts.regathered(function).learning
