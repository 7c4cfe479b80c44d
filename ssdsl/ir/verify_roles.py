"""What roles do in a step, as structure: all of it once, each behind what it needs, and no role waits forever."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.action import Action, At, Compute, End, Free, GatherParam, Start, StartReduce, Update, Wait, WaitReduce
from ssdsl.ir.comm import Message, Transfer
from ssdsl.ir.function import Function
from ssdsl.ir.param import FlatParam, SumTiedGrads, Zero
from ssdsl.ir.parts import BACK_PHASES, coordinates, parts_read
from ssdsl.ir.program import Program, Role
from ssdsl.ir.steps import check_deadlock
from ssdsl.plan.plan import Phase
from ssdsl.text.diagnostic import InternalError

Slot = tuple[str, At]
Posted = tuple[int, At, bool]


def roles_do_everything_once_and_in_order(program: Program) -> Iterator[str]:
    """Each role, on its own: what an action needs was done before it, and nothing is left out."""
    reads = {f.number: _reads(f) for f in program.functions}
    for role in program.roles:
        if role.actions:
            step = _Step(program, role, reads)
            for action in role.actions:
                yield from (f"{role.name}: {problem}" for problem in step.do(action))
            yield from (f"{role.name}: {problem}" for problem in step.left())


def _reads(function: Function) -> dict[At, list[Slot]]:
    """The slots that each forward of a function reads."""
    found: dict[At, list[Slot]] = {}
    for given in function.inputs:
        for part, at in parts_read(given, function.time):
            found.setdefault(at, []).append((given.slot, part))
    return found


@dataclass(slots=True)
class _Step:
    """A role as it goes through its step."""

    program: Program
    role: Role
    reads: dict[int, dict[At, list[Slot]]]
    done: set[Compute] = field(default_factory=set)
    posted: dict[Posted, End] = field(default_factory=dict)
    waited: set[Posted] = field(default_factory=set)
    held: set[Slot] = field(default_factory=set)
    read: set[Slot] = field(default_factory=set)
    reduced: Counter[int] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    gathered: set[int] = field(default_factory=set)
    updates: int = 0
    flats: dict[int, FlatParam] = field(init=False)
    readers: dict[int, dict[At, list[Compute]]] = field(default_factory=dict)  # of a message: the backwards of readers

    def __post_init__(self) -> None:
        self.flats = {f.number: f for f in self.program.flats_of(self.role)}

    def do(self, action: Action) -> Iterator[str]:
        """What is wrong with the next action."""
        match action:
            case Compute():
                yield from self._compute(action)
            case Start():
                yield from self._start(action)
            case Wait():
                yield from self._wait(action)
            case Free():
                if (action.slot, action.at) not in self.held:
                    yield f"{action} drops what is not held"
                self.held.discard((action.slot, action.at))
            case StartReduce() | WaitReduce() | GatherParam():
                yield from self._flat(action)
            case Update():
                self.updates += 1
            case _:
                assert_never(action)

    def left(self) -> Iterator[str]:
        """What the role should have done."""
        for function in self.program.functions:
            if self.role.is_in(function.submesh):
                for phase in (Phase.FORWARD, *BACK_PHASES[function.backward]):
                    for at in coordinates(function.time):
                        if Compute(function.number, at, phase) not in self.done:
                            yield f"{phase} of {function.name} at {at} is left out"
        for message in self.program.messages:
            yield from (f"{what} is left out" for what in self._unposted(message))
        receives = {p for p, end in self.posted.items() if end is not End.SEND}
        yield from (f"nobody waits for what arrives by {posted}" for posted in sorted(receives - self.waited))
        kept = {r.slot for r in self.program.results}
        yield from (f"{slot} is never dropped" for slot in sorted(self.read & self.held) if slot[0] not in kept)
        if self.updates != int(self.program.trains):
            yield f"{self.updates} updates"
        if not self.program.trains:
            yield from (
                f"flat{n} is reduced or gathered" for n in sorted({*self.reduced, *self.finished, *self.gathered})
            )
            return
        for flat in self._flats():
            once = int(bool(flat.completion))
            wanted = {Zero.WEIGHTS: 0, Zero.GRADS: sum(1 for _ in self._adding(flat))}.get(flat.zero, once)
            if self.reduced[flat.number] != wanted:
                yield f"the gradient of flat{flat.number} is reduced {self.reduced[flat.number]} times, not {wanted}"
            tied = any(isinstance(step, SumTiedGrads) for step in flat.completion)
            if (tied or (once and flat.zero in (Zero.NONE, Zero.OPTIMIZER))) and flat.number not in self.finished:
                yield f"nobody waits for the gradient of flat{flat.number}"
            if (flat.zero in (Zero.OPTIMIZER, Zero.GRADS)) != (flat.number in self.gathered):
                yield f"flat{flat.number} of {flat.zero} is {'not ' * (flat.number not in self.gathered)}gathered"

    def _flats(self) -> tuple[FlatParam, ...]:
        return tuple(self.flats.values())

    def _compute(self, task: Compute) -> Iterator[str]:
        if not 0 <= task.function < len(self.program.functions):
            yield f"{task} is of no function"
            return
        function = self.program.functions[task.function]
        phases = (Phase.FORWARD, *BACK_PHASES[function.backward])
        if not self.role.is_in(function.submesh) or task.phase not in phases or not _is_at(task.at, function):
            yield f"{task} is not to be done here"
            return
        if task in self.done:
            yield f"{task} is done twice"
        before = phases[: phases.index(task.phase)]
        yield from (f"{task} is done before {p}" for p in before if Compute(task.function, task.at, p) not in self.done)
        if task.phase is Phase.FORWARD:
            for slot in self.reads[task.function].get(task.at, ()):
                self.read.add(slot)
                if slot not in self.held:
                    yield f"{task} reads {slot}, which is not here"
            self.held.update((o.slot, task.at) for o in function.outputs)
        self.done.add(task)
        if self.updates:
            yield f"{task} comes behind the update"

    def _start(self, action: Start) -> Iterator[str]:
        posted = (action.message, action.at, action.gradient)
        message = self._message(action)
        if message is None:
            yield f"{action} is of no message"
            return
        if posted in self.posted:
            yield f"{action} is done twice"
        self.posted[posted] = action.end
        if action.end is not _end(self.role, message, action.gradient):
            yield f"{action} is not this role's end"
        if isinstance(message, Transfer) and action.end is not End.RECEIVE:
            slot = (message.source_slot, action.at)
            self.read |= set() if action.gradient else {slot}
            if not action.gradient and slot not in self.held:
                yield f"{action} sends what is not here"
            if action.gradient and not self._has_gradient(message, action.at):
                yield f"{action} sends a gradient before it is complete"

    def _has_gradient(self, message: Transfer, at: At) -> bool:
        """Whether every part of the consumer that reads a part of a value has done its backward."""
        if message.number not in self.readers:
            consumer = self.program.functions[message.consumer]
            phase = BACK_PHASES[consumer.backward][0]
            tasks: dict[At, list[Compute]] = {}
            for given in (i for i in consumer.inputs if i.slot == message.target_slot and i.gradient):
                for part, reader in parts_read(given, consumer.time):
                    tasks.setdefault(part, []).append(Compute(consumer.number, reader, phase))
            self.readers[message.number] = tasks
        return all(task in self.done for task in self.readers[message.number].get(at, ()))

    def _wait(self, action: Wait) -> Iterator[str]:
        posted = (action.message, action.at, action.gradient)
        message = self._message(action)
        if message is None or self.posted.get(posted, End.SEND) is End.SEND:
            yield f"{action} waits for nothing that was posted"
            return
        if posted in self.waited:
            yield f"{action} is done twice"
        self.waited.add(posted)
        if isinstance(message, Transfer) and not action.gradient:
            self.held.add((message.target_slot, action.at))

    def _message(self, action: Start | Wait) -> Message | None:
        messages = self.program.messages
        return messages[action.message] if 0 <= action.message < len(messages) else None

    def _unposted(self, message: Message) -> Iterator[str]:
        if not any(map(self.role.is_in, (message.source, message.target))):
            return
        if not isinstance(message, Transfer):
            if not any(m == message.number for m, _, _ in self.posted):
                yield f"message{message.number}"
            return
        for at in coordinates(message.time):
            for gradient in (False, True) if message.backward is not None else (False,):
                if (message.number, at, gradient) not in self.posted:
                    yield f"message{message.number} at {at}{' backward' if gradient else ''}"

    def _flat(self, action: StartReduce | WaitReduce | GatherParam) -> Iterator[str]:
        flats = self.flats
        if action.flat not in flats:
            yield f"{action} is of a flat parameter of other devices"
            return
        match action:
            case StartReduce():
                if action.flat in self.reduced and flats[action.flat].zero is not Zero.GRADS:
                    yield f"{action} is done twice"
                self.reduced[action.flat] += 1
                if flats[action.flat].zero is not Zero.GRADS:
                    left = [t for t in self._adding(flats[action.flat]) if t not in self.done]
                    yield from (f"{action} comes before {task}" for task in left)
                if self.updates:
                    yield f"{action} comes behind the update"
            case WaitReduce():
                tied = any(isinstance(step, SumTiedGrads) for step in flats[action.flat].completion)
                if action.flat in self.finished or (action.flat not in self.reduced and not tied):
                    yield f"{action} waits for nothing that was started"
                self.finished.add(action.flat)
                if self.updates:
                    yield f"{action} comes behind the update"
            case GatherParam():
                if action.flat in self.gathered:
                    yield f"{action} is done twice"
                self.gathered.add(action.flat)
                if not self.updates:
                    yield f"{action} comes before the update"

    def _adding(self, flat: FlatParam) -> Iterator[Compute]:
        """The backwards that add to the gradient of a flat parameter."""
        for function in self.program.functions:
            weights = {p.var.name.value for p in function.parameters if p.var.gradient is not None}
            if function.submesh == flat.submesh and not weights.isdisjoint(flat.weights):
                for phase in BACK_PHASES[function.backward][-1:]:
                    yield from (Compute(function.number, at, phase) for at in coordinates(function.time))


def _is_at(at: At, function: Function) -> bool:
    return len(at) == len(function.time) and all(0 <= c < t.parts for c, t in zip(at, function.time, strict=True))


def _end(role: Role, message: Message, gradient: bool) -> End | None:
    source, target = (role.is_in(submesh) for submesh in message.ends(gradient))
    if source:
        return End.BOTH if target else End.SEND
    return End.RECEIVE if target else None


# -- roles against each other ------------------------------------------------------------------------------------------


def no_role_waits_forever(program: Program) -> Iterator[str]:
    """The roles, run against each other, get to their ends."""
    try:
        check_deadlock(program.roles, program.functions, program.messages, program.flats)
    except InternalError as error:
        yield str(error)


def messages_keep_their_order(program: Program) -> Iterator[str]:
    """What one role sends another arrives in the order in which it is received, in each lane and direction."""
    sent: dict[tuple[int, int, int, bool], list[Posted]] = {}
    received: dict[tuple[int, int, int, bool], list[Posted]] = {}
    members: dict[tuple[int, bool], tuple[list[int], ...]] = {}  # the roles at the ends of a message
    for k, role in enumerate(program.roles):
        for action in role.actions:
            if isinstance(action, Start):
                way = (action.message, action.gradient)
                if way not in members:
                    ends = program.messages[action.message].ends(action.gradient)
                    members[way] = tuple([n for n, r in enumerate(program.roles) if r.is_in(s)] for s in ends)
                source, target = members[way]
                lane = program.messages[action.message].lane
                posted = (action.message, action.at, action.gradient)
                if action.end is not End.RECEIVE:
                    for other in target:
                        sent.setdefault((k, other, lane, action.gradient), []).append(posted)
                if action.end is not End.SEND:
                    for other in source:
                        received.setdefault((other, k, lane, action.gradient), []).append(posted)
    for key in sent.keys() | received.keys():
        if sent.get(key) != received.get(key):
            a, b, _, _ = key
            yield f"{program.roles[b].name} receives in another order than {program.roles[a].name} sends"


ROLE_ROWS: tuple[Callable[[Program], Iterator[str]], ...] = (
    roles_do_everything_once_and_in_order,
    no_role_waits_forever,
    messages_keep_their_order,
)
