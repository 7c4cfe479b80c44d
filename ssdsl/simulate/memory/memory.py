"""Memory by liveness: the bytes that each device holds at every moment of a step, and the parts of its peak.

Weights and optimizer state are always there; gradients from a weight's first gradient on; the device's part of the
batch, with the values of its prologue, for the whole step (the seed and the count of a step are a few bytes, and are
left out). Activations live from a forward to its backward (or to the weights' half of it), received values until they
are read or, if no backward keeps them, until they are freed. Overhead is not counted: torch itself, gaps of the
allocator, workspaces of kernels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from types import MappingProxyType

from ssdsl.analyse.collectives import is_in_parts, is_reduced
from ssdsl.analyse.program_index import ProgramIndex, flat_bytes, size_bytes
from ssdsl.analyse.state import StatePrecision
from ssdsl.ir.comm import AllGather, Exchange, Narrow, Step, Transfer, travels
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.function import Backward, Conversion, Function, FunctionInput, OpPart, Prologue, results_of
from ssdsl.ir.param import FlatParam
from ssdsl.ir.parts import parts_read
from ssdsl.ir.program import (
    At,
    Compute,
    DropWeights,
    Free,
    KeepWeights,
    Program,
    Role,
    ScatterGrads,
    Start,
    Wait,
    WaitReduce,
    on_devices,
)
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import ITEMSIZE, Origin
from ssdsl.plan.plan import Phase, State
from ssdsl.record import Record, replace
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.run import Interval, Trace
from ssdsl.simulate.timeline import MEMORY_PARTS, Memory

Change = tuple[float, int, str]  # a moment, and the bytes of a part that are allocated, or freed if negative


def memories(
    program: Program,
    trace: Trace,
    activations: Activations,
    capacity: list[int | None],
    places: Sequence[Mapping[str, int]],
) -> list[Memory]:
    """The memory of one device of each role: of that at these coordinates, where devices have unequal portions of the
    state."""
    found, inputs, gradients = [], Inputs(activations.facts), Gradients(activations.facts)
    for r, (role, ran) in enumerate(zip(program.roles, trace.ran, strict=True)):
        live = _Liveness(program, activations, gradients)
        live.run(role, ran)
        state = state_of(program, activations.facts.state, role, _by_weight(program, live.learned), places[r])
        curve = _curve(r, [*state, (0.0, inputs.of(role), "inputs"), *live.changes], capacity[r])
        on_host = host_bytes(program, activations.facts.state, role) + live.most_on_host
        found.append(replace(curve, host_bytes=on_host))
    return found


def _curve(row: int, changes: list[Change], capacity: int | None) -> Memory:
    changes = sorted(changes)  # at one time, frees come first
    totals = list(accumulate(size for _, size, _ in changes))
    peak = totals.index(max(totals))
    held = dict.fromkeys(MEMORY_PARTS, 0)
    for _, size, part in changes[: peak + 1]:
        held[part] += size
    sizes = dict(zip((time for time, _, _ in changes), totals, strict=True))  # the last total at each time
    parts = tuple((p, n) for p, n in held.items() if n)
    peak_s, peak_bytes = changes[peak][0], totals[peak]
    given = tuple(sizes), tuple(sizes.values()), peak_s, peak_bytes, parts, capacity
    return Memory(row, *given, changes=tuple(changes))


# -- state -------------------------------------------------------------------------------------------------------------


def state_of(
    program: Program,
    state: StatePrecision,
    role: Role,
    learned: Mapping[str, float],
    at: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Change]:
    """Yields the memory of a role's state: weights and optimizer state from the start, the gradient of a weight from
    the time at which it is `learned`. Gradients that are reduced together are one tensor, from the first one on. Of
    unequal parts it is that of the device at these coordinates, or of the largest one."""
    elements = {(p.weight, p.submesh): p.elements for p in program.params}
    here = [flat for flat in program.flats_of(role) if not flat.on_host]
    yield 0.0, homes_bytes(program, state, here), "optimizer"
    for flat in program.flats_of(role):
        own = flat.elements_over(flat.sharded.optimizer, at)
        if flat.homes:
            left = sum(elements[w, flat.submesh] for w, home in zip(flat.weights, flat.homes, strict=True) if not home)
            own = own * left // flat.elements
        if flat.on_host is not State.WEIGHTS:
            yield 0.0, flat_bytes(flat, flat.sharded.weights, at), "weights"
        if not flat.on_host:
            yield 0.0, own * state.optimizer_bytes(flat.dtype), "optimizer"
        times, itemsize = [(learned[w], w) for w in flat.weights if w in learned], state.gradient_bytes(flat.dtype)
        if times and (is_reduced(flat) or flat.sharded.grads):
            yield min(times)[0], flat.elements_over(flat.sharded.grads, at) * itemsize, "gradients"
        else:
            yield from ((time, elements[w, flat.submesh] * itemsize, "gradients") for time, w in times)
    others = on_devices(role, [p for p in program.params if not p.trained])
    yield 0.0, sum(p.elements * ITEMSIZE.get(p.dtype, 4) for p in others), "weights"


def homes_bytes(program: Program, state: StatePrecision, flats: Iterable[FlatParam]) -> int:
    """The bytes on the fullest device of the optimizer's state of whole weights. A weight that the device does not hold
    as a whole itself is there once more, for the optimizer."""
    params = {(p.weight, p.submesh): p for p in program.params}
    held = Counter[tuple[int, ...]]()
    for flat in flats:
        for weight, home in zip(flat.weights, flat.homes, strict=False):
            if home is not None:
                param = params[weight, flat.submesh]
                each = state.optimizer_bytes(flat.dtype) + is_in_parts(flat, param) * ITEMSIZE.get(flat.dtype, 4)
                for at in home.devices(flat.submesh):
                    held[at] += param.shape.numel * each
    return max(held.values(), default=0)


def host_bytes(program: Program, state: StatePrecision, role: Role) -> int:
    """The bytes that a device of a role has on its host: the optimizer's state, what it steps on, and its gradient; of
    weights in half precision that lie there these, too."""
    flats = [flat for flat in program.flats_of(role) if flat.on_host]
    found = homes_bytes(program, state, flats)
    for flat in flats:
        size, elements = ITEMSIZE.get(flat.dtype, 4), flat.elements_over(flat.sharded.optimizer)
        stepped = max(size, 4) if state.masters else size
        held = 0 if any(flat.homes) else state.optimizer_bytes(flat.dtype)
        found += elements * (held + stepped + (stepped if stepped == size else 0))  # a master counts with the state
        found += elements * size if flat.on_host is State.WEIGHTS and stepped != size else 0
    return found


def state_bytes(
    program: Program,
    state: StatePrecision,
    role: Role,
    learned: Mapping[str, float] = MappingProxyType({}),
    at: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """The bytes of state on a device of a role, with the gradients of the weights that are `learned`."""
    return sum(size for _, size, _ in state_of(program, state, role, learned, at))


def _by_weight(program: Program, learned: Mapping[int, float]) -> dict[str, float]:
    """By weight, the first time at which a function has `learned` its gradient."""
    found: dict[str, float] = {}
    for number, time in learned.items():
        for weight in (p.var.name.value for p in program.functions[number].parameters):
            found[weight] = min(time, found.get(weight, time))
    return found


# -- activations and messages ------------------------------------------------------------------------------------------

Part = tuple[int, At, bool]  # of a message: what a `Wait` says
SlotPart = tuple[str, At]  # of a value in a slot: what a `Free` says


class _Slot(Record):
    """The memory of a part of a value until it is freed. `is_kept`: the task that reads it keeps it for backward, so it
    is counted there from the start of that task on."""

    part: str
    size_bytes: int
    is_kept: bool = False


class Gradients(dict[int, dict[At, list[tuple[SlotPart, int]]]]):
    """By function and coordinates of a task, the parts of inputs to whose gradients its backward adds, with the bytes
    of these; found at the first look-up."""

    def __init__(self, facts: ProgramIndex) -> None:
        super().__init__()
        self.facts = facts

    def __missing__(self, number: int) -> dict[At, list[tuple[SlotPart, int]]]:
        function = self.facts.program.functions[number]
        self[number] = found = dict[At, list[tuple[SlotPart, int]]]()
        for given in (i for i in function.inputs if i.gradient):
            size = self._size_bytes(given)
            for part, at in parts_read(given, function.time):
                found.setdefault(at, []).append(((given.slot, part), size))
        return found

    def _size_bytes(self, given: FunctionInput) -> int:
        """The mean bytes of the gradient of one part of an input, as its producer has made it."""
        elements, itemsize = given.var.elements, ITEMSIZE.get(given.var.dtype, 4)
        producer = self.facts.program.functions[given.producer]
        left = next((o.name for o in producer.outputs if o.slot == given.slot), None)
        if left is not None:
            elements = self.facts.variables(producer)[left].elements
            if given.in_flight:
                return elements * itemsize + _source_bytes(producer, given.slot, gradient=True)
        elif not any(isinstance(m, Exchange) for m in given.merges):
            elements //= prod(m.source.count for m in given.merges if isinstance(m, AllGather))
        return elements * itemsize


@dataclass(slots=True)
class _Liveness:
    """The memory of values on one role, from the intervals of its tasks and messages.

    `learned` has, by function, the time from which the gradients of its weights are counted as state: the end of its
    first backward, because until then they are counted with that task; for a backward in halves the start of its first
    weights' half.
    """

    program: Program
    activations: Activations
    gradients: Gradients
    freed: set[SlotPart] = field(default_factory=set)
    slots: dict[SlotPart, _Slot] = field(default_factory=dict)
    awaited: list[Interval] = field(default_factory=list)  # gradients that the next task reads
    waiting: dict[SlotPart, int] = field(default_factory=dict)  # bytes of gradients that their function awaits
    leaving: dict[SlotPart, int] = field(default_factory=dict)  # bytes of sources of what is in flight
    learned: dict[int, float] = field(default_factory=dict)
    scattering: int = 0  # bytes of whole gradients that go to their owners
    on_host: int = 0  # bytes of activations there now, and the most
    most_on_host: int = 0
    adding: set[int] = field(default_factory=set)  # flat parameters of which whole gradients are added up
    changes: list[Change] = field(default_factory=list)

    def run(self, role: Role, ran: Sequence[Interval]) -> None:
        """Adds the changes of memory of the role's actions, in their order."""
        tasks = (x for x in ran if isinstance(x.action, Compute))
        sent, arrived = dict[Part, Interval](), dict[Part, Interval]()
        for x in ran:
            if isinstance(x.action, Start):
                (sent if x.part is ActionPart.SENT else arrived)[x.action[:3]] = x
        self.freed.update(a for a in role.actions if isinstance(a, Free))
        start = end = now = 0.0  # the last task or message; `now` is the time at which the role posts what follows
        staying: list[FlatParam] = []  # weights that stay from the next task on
        adds = self._added(role)
        for action in role.actions:
            match action:
                case Compute():
                    task = next(tasks)
                    start, end = task.start, task.end
                    now = end
                    for flat in staying:
                        self._change(start, _kept_bytes(flat), "weights")
                    staying = []
                    if action.phase.of_weights:
                        self._add_up(adds.get(action.function, []), end)
                    self._task(action, start, end)
                case Start():
                    journey = sent.get(part := action[:3])
                    self._message(action, journey, arrived.get(part), now)
                    end = end if journey is None else journey.end
                case Wait() if action.gradient:
                    self.awaited.append(arrived[action])
                case KeepWeights():
                    staying.append(self.program.flats[action.flat])
                case DropWeights():
                    self._change(end, -_kept_bytes(self.program.flats[action.flat]), "weights")
                case ScatterGrads():
                    flat = self.program.flats[action.flat]
                    size = self._gradient_bytes(flat)
                    if flat.number in self.adding:
                        self.adding.discard(flat.number)
                        self._change(end, -size, "gradients")
                    self._scatter(end, size)
                case WaitReduce():
                    self._scatter(end, 0)
                case Free() if (slot := self.slots.pop(action, None)) is not None:
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

    def _gradient_bytes(self, flat: FlatParam) -> int:
        """The bytes of the gradients that a backward leaves of a flat parameter."""
        before, _, _ = flat.cuts
        return flat.elements_over(before) * self.activations.facts.state.gradient_bytes(flat.dtype)

    def _added(self, role: Role) -> dict[int, list[FlatParam]]:
        """By function, the flat parameters of weights that stay whole to whose gradients its backward adds."""
        flats = [flat for flat in self.program.flats_of(role) if flat.stays_whole]
        found: dict[int, list[FlatParam]] = {}
        for function in self.program.functions_of(role) if flats else ():
            learns = (f for f in flats if f.submesh == function.submesh and not function.trained.isdisjoint(f.weights))
            found[function.number] = [*learns]
        return found

    def _add_up(self, flats: list[FlatParam], time: float) -> None:
        """Adds the memory of whole gradients from the end of the first backward on that adds to them: until then they
        are counted with that task."""
        for flat in flats:
            if flat.number not in self.adding:
                self.adding.add(flat.number)
                self._change(time, self._gradient_bytes(flat), "gradients")

    def _scatter(self, time: float, size_bytes: int) -> None:
        """Adds the memory of gradients that go to their owners, and are whole until the next ones go, or until they are
        awaited."""
        self._change(time, size_bytes - self.scattering, "gradients")
        self.scattering = size_bytes

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _task(self, task: Compute, start: float, end: float) -> None:
        function, at, freed = self.program.functions[task.function], task.at, self.freed
        kept, out = self.activations.of(function, at), function.outputs
        lent = {slot: size for number, size in kept.lent if (slot := (out[number].slot, at)) in freed}
        self._host(kept.host_bytes, function, task.phase)
        scratch = kept.gathered_bytes if task.phase is not Phase.BACKWARD else 0
        for journey in self.awaited:
            self._change(start, -_sent_bytes(journey), "transfers")
        self.awaited.clear()
        if task.phase is Phase.FORWARD:
            self._in_flight(function, at, start, end)
        match task.phase:
            case Phase.FORWARD if function.again is not None:
                left = {slot: n for o, n in zip(out, kept.outputs, strict=True) if (slot := (o.slot, at)) in freed}
                self._while(start, end, sum(kept.outputs) - sum(left.values()), "activations")
                self._change(start, sum(left.values()), "activations")
                self.slots.update((slot, _Slot("activations", n)) for slot, n in left.items())
            case Phase.AGAIN:
                again = {(o.slot, at) for o in out if o.again}
                self._change(start, kept.size_bytes, "activations")
                self.slots.update((slot, _Slot("activations", n)) for slot, n in lent.items() if slot in again)
                self._change(end, -sum(n for slot, n in lent.items() if slot not in again), "activations")
            case Phase.FORWARD:
                made = kept.size_bytes or sum(kept.outputs)  # without a backward, only outputs
                self._change(start, made, "activations")
                travelling = {(o.slot, at) for o in out if o.in_flight}
                self.slots.update((slot, _Slot("activations", n, slot in travelling)) for slot, n in lent.items())
                if function.backward is Backward.NONE:
                    self._change(end, sum(lent.values()) - made, "activations")
            case phase if phase.of_inputs:
                self._change(end, sum(lent.values()) + kept.for_weights - kept.size_bytes, "activations")
                self._gradients(function, at, start, end)
                if task.phase is Phase.BACKWARD and task.function not in self.learned:
                    self.learned[task.function] = end
                    learned = min(kept.first_bytes, kept.learned_bytes)
                    self._while(start, end, learned, "gradients")
                    scratch += kept.first_bytes - learned
                else:
                    scratch += kept.later_bytes
            case _:
                self._change(end, -kept.for_weights, "activations")
                self.learned.setdefault(task.function, start)
        self._while(start, end, scratch, "scratch")

    def _host(self, size_bytes: int, function: Function, phase: Phase) -> None:
        """Counts what a task leaves on the host, or takes back; the halves of a backward read it both."""
        if phase is function.keeps:
            self.on_host += size_bytes
            self.most_on_host = max(self.most_on_host, self.on_host)
        elif phase is function.phases[-1]:
            self.on_host -= size_bytes

    def _in_flight(self, function: Function, at: At, start: float, end: float) -> None:
        """Adds the memory of the sources of outputs in flight, from the end of their task to the start of the next
        one that awaits them."""
        for given in (i for i in function.inputs if i.in_flight):
            self._change(start, -self.leaving.pop((given.slot, at), 0), "transfers")
        for output in (o for o in function.outputs if o.in_flight):
            self.leaving[output.slot, at] = size = _source_bytes(function, output.slot, gradient=False)
            self._change(end, size, "transfers")

    def _gradients(self, function: Function, at: At, start: float, end: float) -> None:
        """Adds the memory of values' gradients: each waits from the first backward that adds to it until the backward
        of the function that made the value."""
        for output in function.outputs:
            self._return(output.slot, at, start)
        for slot, size in self.gradients[function.number].get(at, ()):
            if slot not in self.waiting:
                self.waiting[slot] = size
                self._change(end, size, "scratch")

    def _return(self, slot: str, at: At, time: float) -> None:
        self._change(time, -self.waiting.pop((slot, at), 0), "scratch")

    def _message(self, action: Start, sent: Interval | None, arrived: Interval | None, posted: float) -> None:
        """Adds the memory of a message: a received value has a buffer from its post, or the start of its journey,
        until it is freed; a sent one for the time of its journey."""
        message = self.program.messages[action.message]
        if not isinstance(message, Transfer):
            return
        if sent is not None:
            if action.gradient:
                self._return(message.target_slot, action.at, sent.start)
            self._while(sent.start, sent.end, _sent_bytes(sent), "transfers")
        if arrived is not None:
            size = _sent_bytes(arrived)
            self._change(min(posted, arrived.start), size, "transfers")
            if not action.gradient:
                is_kept = self.program.functions[message.consumer].backward is not Backward.NONE
                self.slots[message.target_slot, action.at] = _Slot("transfers", size, is_kept)


def _kept_bytes(flat: FlatParam) -> int:
    """The bytes of the weights of a flat parameter that stay."""
    assert flat.kept is not None
    return flat_bytes(flat, flat.kept.axes)


def _source_bytes(function: Function, slot: str, *, gradient: bool) -> int:
    """The bytes that an output in flight, or its gradient, takes in the layout of its source."""
    number = next(n for n, o in enumerate(function.outputs) if o.slot == slot)
    conversion = function.departure(number)
    if conversion.in_place[gradient] or not any(map(travels, conversion.steps(gradient=gradient))):
        return 0
    return size_bytes(function.variables()[conversion.source])


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
                case Origin.OPERATOR | Origin.CONSTANT if not var.type.layout.shards():
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
