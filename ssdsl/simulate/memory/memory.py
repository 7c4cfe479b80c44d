"""Memory by liveness: the bytes that each device holds at every moment of a step, and the parts of its peak.

Weights and optimizer state are always there; gradients from a weight's first gradient on; the device's part of the
batch, with the values of its prologue, for the whole step (the seed and the count of a step are a few bytes, and are
left out). Activations live from a forward to its backward (or to the weights' half of it), received values until they
are read or, if no backward keeps them, until they are freed. Overhead is not counted: torch itself, gaps of the
allocator, workspaces of kernels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

from ssdsl.ir.comm import AllGather, Exchange, Narrow, Step, Transfer
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.function import Backward, Conversion, Function, FunctionInput, OpPart, Prologue, results_of
from ssdsl.ir.parts import reads_of_tasks
from ssdsl.ir.program import At, Compute, Free, Program, Role, Start, Wait
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import ITEMSIZE, Origin
from ssdsl.plan.plan import Phase
from ssdsl.record import Record
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.memory.state import StatePrecision
from ssdsl.simulate.price.collectives import ProgramIndex, flat_bytes, size_bytes
from ssdsl.simulate.run import Interval, Trace, by_role
from ssdsl.simulate.timeline import Memory

PARTS = ("weights", "gradients", "optimizer", "inputs", "activations", "transfers", "scratch")
Change = tuple[float, int, str]  # a moment, and the bytes of a part that are allocated, or freed if negative


def memories(program: Program, trace: Trace, activations: Activations, capacity: list[int | None]) -> list[Memory]:
    """The memory of one device of each role."""
    found, inputs = [], Inputs(activations.facts)
    for r, own in enumerate(by_role(trace.intervals, len(program.roles))):
        ran = {x.action: x for x in own if isinstance(x.action, Compute)}
        arrived = {_key(x.action): x for x in own if isinstance(x.action, Start) and x.part is ActionPart.RECEIVED}
        sent = {_key(x.action): x for x in own if isinstance(x.action, Start) and x.part is ActionPart.SENT}
        role = program.roles[r]
        live = _Liveness(program, activations, ran, arrived, sent)
        live.run(role)
        state = state_of(program, activations.facts.state, role, _first_gradients(program, ran))
        found.append(_curve(r, [*state, (0.0, inputs.of(role), "inputs"), *live.changes], capacity[r]))
    return found


def _curve(row: int, changes: list[Change], capacity: int | None) -> Memory:
    held = dict.fromkeys(PARTS, 0)
    times: list[float] = []
    sizes: list[int] = []
    peak, peak_time, peak_parts = -1, 0.0, held.copy()
    total, last = 0, None
    for time, size, part in sorted(changes):  # at one time, frees come first
        held[part] += size
        total += size
        if time == last:
            sizes[-1] = total
        else:
            times.append(time)
            sizes.append(total)
            last = time
        if total > peak:
            peak, peak_time, peak_parts = total, time, held.copy()
    parts = tuple((p, n) for p, n in peak_parts.items() if n)
    return Memory(row, tuple(times), tuple(sizes), peak_time, max(peak, 0), parts, capacity)


# -- state -------------------------------------------------------------------------------------------------------------


def state_of(program: Program, state: StatePrecision, role: Role, learned: Mapping[str, float]) -> Iterator[Change]:
    """Yields the memory of a role's state: weights and optimizer state from the start, gradients from the first time at
    which one of their weights is `learned`."""
    for flat in program.flats_of(role):
        own = flat.elements_over(flat.sharded.optimizer)
        yield 0.0, flat_bytes(flat, flat.sharded.weights), "weights"
        yield 0.0, own * state.optimizer_bytes(flat.dtype), "optimizer"
        if times := [learned[w] for w in flat.weights if w in learned]:
            held = flat.elements_over(flat.sharded.grads)
            yield min(times), held * state.gradient_bytes(flat.dtype), "gradients"
    others = (p for p in program.params_of(role) if not p.trained)
    yield 0.0, sum(p.elements * ITEMSIZE.get(p.dtype, 4) for p in others), "weights"


def state_bytes(
    program: Program, state: StatePrecision, role: Role, learned: Mapping[str, float] = MappingProxyType({})
) -> int:
    """The bytes of state on a device of a role, with the gradients of the weights that are `learned`."""
    return sum(size for _, size, _ in state_of(program, state, role, learned))


def _first_gradients(program: Program, ran: dict[Compute, Interval]) -> dict[str, float]:
    """By weight, the time from which its gradient is counted here: the end of the first backward that computes it,
    because until then it is counted with that task; for a backward in halves the start of the first weights' half."""
    times: dict[int, float] = {}  # by function
    for task, x in ran.items():
        if task.phase in (Phase.BACKWARD, Phase.WGRAD):
            time = x.end if task.phase is Phase.BACKWARD else x.start
            times[task.function] = min(time, times.get(task.function, time))
    found: dict[str, float] = {}
    for number, time in times.items():
        for weight in (p.var.name.value for p in program.functions[number].parameters):
            found[weight] = min(time, found.get(weight, time))
    return found


# -- activations and messages ------------------------------------------------------------------------------------------

Key = tuple[int, At, bool]  # a message's number, its coordinates in time, and whether it carries a gradient


def _key(action: Start | Wait) -> Key:
    return action.message, action.at, action.gradient


class _Slot(Record):
    """The memory of a part of a value until it is freed. `is_kept`: the task that reads it keeps it for backward, so it
    is counted there from the start of that task on."""

    part: str
    size_bytes: int
    is_kept: bool = False


@dataclass(slots=True)
class _Liveness:
    """The memory of values on one role, from the intervals of its tasks and messages."""

    program: Program
    activations: Activations
    ran: dict[Compute, Interval]
    arrived: dict[Key, Interval]
    sent: dict[Key, Interval]
    slots: dict[tuple[str, At], _Slot] = field(default_factory=dict)
    awaited: list[Interval] = field(default_factory=list)  # gradients that the next task reads
    waiting: dict[tuple[str, At], int] = field(default_factory=dict)  # bytes of gradients that their function awaits
    reads: dict[int, dict[At, list[tuple[FunctionInput, At]]]] = field(default_factory=dict)
    learned: set[int] = field(default_factory=set)  # functions that have run a backward
    changes: list[Change] = field(default_factory=list)

    def run(self, role: Role) -> None:
        """Adds the changes of memory of the role's actions, in their order."""
        freed = {(a.slot, a.at) for a in role.actions if isinstance(a, Free)}
        start = end = now = 0.0  # the last task or message; `now` is the time at which the role posts what follows
        for action in role.actions:
            match action:
                case Compute():
                    start, end = self.ran[action].start, self.ran[action].end
                    now = end
                    self._task(action, start, end, freed)
                case Start():
                    self._message(action, now)
                    if (journey := self.sent.get(_key(action))) is not None:
                        end = journey.end
                case Wait() if action.gradient:
                    self.awaited.append(self.arrived[_key(action)])
                case Free() if (slot := self.slots.pop((action.slot, action.at), None)) is not None:
                    self._change(start if slot.is_kept else end, -slot.size_bytes, slot.part)
                case _:
                    pass

    def _change(self, time: float, size_bytes: int, part: str) -> None:
        if size_bytes:
            self.changes.append((time, size_bytes, part))

    def _while(self, start: float, end: float, size_bytes: int, part: str) -> None:
        """Adds memory that is held for a time."""
        if size_bytes:
            self.changes += ((start, size_bytes, part), (end, -size_bytes, part))

    def _task(self, task: Compute, start: float, end: float, freed: set[tuple[str, At]]) -> None:
        function, phase = self.program.functions[task.function], task.phase
        kept = self.activations.of(function, task.at)
        slots = ((function.outputs[number].slot, size) for number, size in kept.lent)
        lent = {(slot, task.at): size for slot, size in slots if (slot, task.at) in freed}
        for journey in self.awaited:
            self._change(start, -_sent_bytes(journey), "transfers")
        self.awaited.clear()
        match phase:
            case Phase.FORWARD:
                made = kept.size_bytes or sum(kept.outputs)  # without a backward, only outputs
                self._change(start, made, "activations")
                self.slots.update((slot, _Slot("activations", size)) for slot, size in lent.items())
                if function.backward is Backward.NONE:
                    self._change(end, sum(lent.values()) - made, "activations")
            case Phase.BACKWARD:
                self._change(end, sum(lent.values()) - kept.size_bytes, "activations")
            case Phase.DGRAD:
                self._change(end, sum(lent.values()) + kept.for_weights - kept.size_bytes, "activations")
            case Phase.WGRAD:
                self._change(end, -kept.for_weights, "activations")
        scratch = kept.gathered_bytes
        if phase is Phase.BACKWARD or phase is Phase.DGRAD:
            self._gradients(function, task.at, start, end)
            is_first = phase is Phase.BACKWARD and task.function not in self.learned
            self.learned.add(task.function)
            learned = min(kept.first_bytes, kept.learned_bytes) if is_first else 0
            self._while(start, end, learned, "gradients")
            scratch += kept.first_bytes - learned if is_first else kept.later_bytes
        self._while(start, end, scratch, "scratch")

    def _gradients(self, function: Function, at: At, start: float, end: float) -> None:
        """Adds the memory of values' gradients: each waits from the first backward that adds to it until the backward
        of the function that made the value."""
        for output in function.outputs:
            self._return(output.slot, at, start)
        if function.number not in self.reads:
            self.reads[function.number] = reads_of_tasks(function)
        for given, part in self.reads[function.number].get(at, ()):
            if given.gradient and (given.slot, part) not in self.waiting:
                self.waiting[given.slot, part] = size = self._gradient_bytes(given)
                self._change(end, size, "scratch")

    def _return(self, slot: str, at: At, time: float) -> None:
        self._change(time, -self.waiting.pop((slot, at), 0), "scratch")

    def _gradient_bytes(self, given: FunctionInput) -> int:
        """The mean bytes of the gradient of one part of an input, as its producer has made it."""
        elements = given.var.elements
        producer = self.program.functions[given.producer]
        left = next((o.name for o in producer.outputs if o.slot == given.slot), None)
        if left is not None:
            elements = self.activations.facts.variables(producer)[left].elements
        elif not any(isinstance(m, Exchange) for m in given.merges):
            elements //= prod(m.source.count for m in given.merges if isinstance(m, AllGather))
        return elements * ITEMSIZE.get(given.var.dtype, 4)

    def _message(self, action: Start, posted: float) -> None:
        """Adds the memory of a message: a received value has a buffer from its post, or the start of its journey,
        until it is freed; a sent one for the time of its journey."""
        message = self.program.messages[action.message]
        if not isinstance(message, Transfer):
            return
        key = _key(action)
        if (journey := self.sent.get(key)) is not None:
            if action.gradient:
                self._return(message.target_slot, action.at, journey.start)
            self._while(journey.start, journey.end, _sent_bytes(journey), "transfers")
        if (journey := self.arrived.get(key)) is not None:
            size = _sent_bytes(journey)
            self._change(min(posted, journey.start), size, "transfers")
            if not action.gradient:
                is_kept = self.program.functions[message.consumer].backward is not Backward.NONE
                self.slots[message.target_slot, action.at] = _Slot("transfers", size, is_kept)


def _sent_bytes(journey: Interval) -> int:
    return journey.cost.sent[0].size_bytes if journey.cost.sent else 0


# -- inputs ------------------------------------------------------------------------------------------------------------


Sizes = dict[str, int]  # bytes by storage


class Inputs(Record):
    """The bytes of inputs of a program's roles."""

    facts: ProgramIndex

    def of(self, role: Role) -> int:
        """The bytes on one device of a role. Prologues of the same devices share values of one name."""
        found: Sizes = {}
        for prologue in self.facts.program.prologues_of(role):
            found.update(self._given(prologue))
            found.update(self._made(prologue))
        return sum(found.values())

    def _given(self, prologue: Prologue) -> Iterator[tuple[str, int]]:
        """Yields the name and bytes of each input that is loaded, and of the storage of each constant that is read."""
        values = self.facts.program.graph.values
        for var in prologue.given:
            match values[var.name.value].origin:
                case Origin.SEED:
                    pass
                case Origin.OPERATOR | Origin.CONSTANT:
                    owner = values[self.facts.places[var.name.value].root]
                    yield owner.name, prod(owner.shape) * owner.itemsize
                case _:
                    yield str(var.name), size_bytes(var)

    def _made(self, prologue: Prologue) -> Iterator[tuple[str, int]]:
        """Yields the name and bytes of each result that is not a view of a value that is there already."""
        here = {v.name for v in prologue.given} | {v.name for i in prologue.body for v in results_of(i)}
        for instr in prologue.body:
            for var in results_of(instr):
                root = Name(self.facts.places[var.name.value].root)
                match instr:
                    case Conversion() if all(_is_view(s, var) for s in instr.forward):
                        pass
                    case OpPart() if root != var.name and root in here:
                        pass
                    case _:
                        yield str(var.name), size_bytes(var)


def _is_view(step: Step, result: Var) -> bool:
    """Whether the result of a step is a view of its operand, one run of its memory; else it is a copy."""
    if not isinstance(step, Narrow):
        return False
    before, at = result.shape[: step.target.dim], step.target.at
    return step.target.outer == 1 and prod(s.known for s in before) == 1 and (at is None or max(map(len, at)) == 1)
