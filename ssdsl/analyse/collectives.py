"""The collectives of a program: their axes and bytes, in each task and for each flat parameter.

They follow from the instructions alone: a recomputed section communicates again in backward, and so does a conversion
that is gathered again; a weight's gradient belongs to the second half of a split backward.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import assert_never

from ssdsl.analyse.gathers import NONE_STAY, Staying, gather_axes
from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.ir.comm import Exchange, Step, travels
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, Prologue, Section, Write
from ssdsl.ir.param import CompletionStep, FlatParam, Param, SumTiedGrads
from ssdsl.ir.program import (
    DropWeights,
    FlatAction,
    GatherParam,
    KeepWeights,
    ScatterGrads,
    StartReduce,
    WaitReduce,
)
from ssdsl.ir.uses import InstrPlace
from ssdsl.lower.operators.operand_types import local_dims
from ssdsl.model.graph import ITEMSIZE
from ssdsl.model.memory.saved import collectives
from ssdsl.model.ops.reader import Reader
from ssdsl.plan.plan import Phase, State
from ssdsl.record import Record


class SizedCollective(Record):
    """A collective of devices along `axes`. `size_bytes` is the size of the local tensor that an all_reduce sums, an
    all_gather returns, a reduce_scatter is given, or an all_to_all exchanges. `overlaps`: an operator that computes at
    the same time, and in which phase; None as the phase means that of the task. `exchange` says who sends what, if not
    all do alike. A device gets `from_host` bytes of what it sends from its host first."""

    kind: str
    axes: tuple[str, ...]
    size_bytes: int
    overlaps: tuple[OpPart, Phase | None] | None = None
    exchange: Exchange | None = None
    from_host: int = 0


class OfGather(Record):
    """The weights that a section gathers (ZeRO-3), by the number of their flat parameter; their gradients are reduced
    where they are gathered."""

    section: int
    flat: int


class TaskCollective(Record):
    """A collective of a task or a prologue, and what it is for: an instruction (a conversion, or a kernel whose parts
    communicate; of a prologue as in a section 0), or weights. Operators and statements are looked up there by those who
    want to know."""

    call: SizedCollective
    origin: InstrPlace | OfGather


# -- tasks -------------------------------------------------------------------------------------------------------------


def of_task(
    facts: ProgramIndex, function: Function, phase: Phase, stay: Staying = NONE_STAY
) -> Iterator[TaskCollective]:
    """The collectives of a function in a phase, in the order of its instructions; `stay` are the weights that it need
    not gather."""
    flats, gathers = facts.program.flats, dict[tuple[int, int], list[tuple[str, ...]]]()
    for step, axes in gather_axes(facts.gather_steps(function, phase), flats, stay):
        if axes and not step.reduces:
            gathers.setdefault(step.gather, []).append(axes)
    for number, section in enumerate(function.sections):
        for place, call in of_section(facts, function, section, phase):
            yield TaskCollective(call, InstrPlace(number, place))
        for flat in section.gathers:
            calls = [of_gather(flats[flat], axes) for axes in gathers.get((number, flat), ())]
            if phase.of_weights and learns_weights(facts, function, number, flats[flat]):
                calls += of_backward(flats[flat], facts.state)
            yield from (TaskCollective(call, OfGather(number, flat)) for call in calls)


def of_travel(function: Function, output: int, *, gradient: bool) -> Iterator[SizedCollective]:
    """The collectives of an output in flight, or of its gradient, which are among those of its task."""
    conversion = function.departure(output)
    return _of_steps(conversion.steps(gradient=gradient), ITEMSIZE.get(conversion.result.dtype, 4))


def of_prologue(prologue: Prologue) -> Iterator[TaskCollective]:
    """The collectives that bring inputs and constants to devices, once a step."""
    for place, instr in enumerate(prologue.body):
        if isinstance(instr, Conversion):
            for call in _of_steps(instr.forward, ITEMSIZE.get(instr.result.dtype, 4)):
                yield TaskCollective(call, InstrPlace(0, place))


PlacedCalls = tuple[tuple[int, SizedCollective], ...]


def of_section(facts: ProgramIndex, function: Function, section: Section, phase: Phase) -> PlacedCalls:
    """The collectives of a section's instructions in a phase, each with the place of its instruction. They are found
    once for each kind, unless some overlap with an operator, which is one of this section."""
    key = section.kind, phase
    if key not in facts.of_kinds:
        found = tuple(
            (place, call)
            for place, instr in enumerate(section.body)
            for call in _of_instr(facts, function, section, instr, phase)
        )
        if section.kind is None or any(call.overlaps for _, call in found):
            return found
        facts.of_kinds[key] = found
    return facts.of_kinds[key]  # type: ignore[no-any-return]


def _of_instr(
    facts: ProgramIndex, function: Function, section: Section, instr: Instr, phase: Phase
) -> Iterator[SizedCollective]:
    """The collectives of one instruction in a phase; a recomputed section repeats those of forward in backward.

    A value that backward gathers again (`instr.again`) arrives while the same product's gradient of its input is
    computed; a gradient is reduced while the product's gradient of its weight is computed.
    """
    forward = phase.is_forward or (section.recompute and phase.of_inputs)
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
    return phase.of_weights if is_weight else phase.of_inputs


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
    rings = [(kernel, op.kernel.around)]
    if op.kernel.merging and operator.row.kernel is not None:
        rings.append((operator.row.kernel, op.kernel.merging))
    for back, runs in ((False, forward), (True, phase.of_inputs and op.learns)):
        for own, axes in rings if runs else ():
            for c in collectives(reader, own, op.parts_along(axes), back=back):
                yield SizedCollective(c.kind, axes, c.size_bytes, (op, None) if c.overlaps else None)


# -- flat parameters ---------------------------------------------------------------------------------------------------


def of_backward(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives that reduce the gradients of gathered weights in the backward of their section (ZeRO-3). `state`
    gives the dtype of gradients, by default that of the weights, here and below."""
    return _sized(flat, flat.completion.in_backward, state)


def of_action(action: FlatAction, flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives of an action on a flat parameter, but for the sum over the copies of a tied weight."""
    match action:
        case ScatterGrads():
            return of_scatter(flat, state)
        case StartReduce():
            return _sized(flat, flat.completion.started, state)
        case WaitReduce():
            return _sized(flat, flat.completion.awaited, state)
        case GatherParam():
            return of_updated(flat)
        case KeepWeights() | DropWeights():
            return iter(())


def of_scatter(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives after each backward (ZeRO-2)."""
    return _sized(flat, flat.completion.each, state)


def of_once(flat: FlatParam, state: StatePrecision = MIXED) -> Iterator[SizedCollective]:
    """The collectives that complete the gradient after the last backward, on the flat parameter's own submesh."""
    return _sized(flat, flat.completion.once, state)


def of_homes(facts: ProgramIndex, flat: FlatParam) -> Iterator[SizedCollective]:
    """The collectives of an update in which the optimizer steps on whole weights: the gradients of weights in parts go
    home; then the parts come back, or all devices of a weight get it."""
    grads, itemsize = facts.state.gradient_bytes(flat.dtype), ITEMSIZE.get(flat.dtype, 4)
    parts, wholes = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()  # elements, by the axes
    for weight, home in zip(flat.weights, flat.homes, strict=False):
        if home is not None:
            param = facts.params_on(flat.submesh)[weight]
            (parts if is_in_parts(flat, param) else wholes)[home.axes] += param.elements
    for axes, elements in parts.items():
        yield SizedCollective("all_to_all", axes, elements * grads)
        yield SizedCollective("all_to_all", axes, elements * itemsize)
    for axes, elements in wholes.items():
        yield SizedCollective("all_gather", axes, elements * itemsize)


def is_in_parts(flat: FlatParam, param: Param) -> bool:
    """Whether no device of a weight holds all of its elements to step on."""
    return bool(flat.sharded.optimizer) or param.elements < param.shape.numel


def _sized(flat: FlatParam, steps: Sequence[CompletionStep], state: StatePrecision) -> Iterator[SizedCollective]:
    """The collectives of a completion's steps on the flat parameter's own submesh."""
    own = tuple(step for step in steps if not isinstance(step, SumTiedGrads))
    return _of_steps(own, state.gradient_bytes(flat.dtype))


def of_gather(flat: FlatParam, axes: tuple[str, ...]) -> SizedCollective:
    """The gather of the weights that a section reads (ZeRO-3), over the axes along which they are in parts."""
    from_host = flat_bytes(flat, axes) if flat.on_host is State.WEIGHTS and axes == flat.sharded.weights else 0
    return SizedCollective("all_gather", axes, _gathered_bytes(flat, axes), from_host=from_host)


def of_updated(flat: FlatParam) -> Iterator[SizedCollective]:
    """The gathers of updated weights: from the shards of the optimizer's state to those of the weights."""
    _, grads, optimizer = flat.sharded.levels
    for axes, over in ((optimizer, flat.sharded.grads), (grads, flat.sharded.weights)):
        if axes:
            yield SizedCollective("all_gather", axes, _gathered_bytes(flat, axes, over))


def _gathered_bytes(flat: FlatParam, axes: tuple[str, ...], within: tuple[str, ...] = ()) -> int:
    return flat.gathered_over(axes, within) * ITEMSIZE.get(flat.dtype, 4)


def is_reduced(flat: FlatParam) -> bool:
    """Whether gradients are completed on the flat parameter's own submesh."""
    return any(not isinstance(step, SumTiedGrads) for step in flat.completion.steps)


def learns_weights(facts: ProgramIndex, function: Function, section: int, flat: FlatParam) -> bool:
    """Whether the weights that a section gathers get a gradient: not under `no_grad`."""
    return (section, flat.number) in facts.regathered(function).learning
