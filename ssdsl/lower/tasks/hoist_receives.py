"""Posts receives as early as there are buffers for them, so that a value travels while its receiver computes.

`schedule_tasks.py` puts a receive where its value is nominally ready. The real value may come sooner, and then waits
until the receive is posted. Only the task that reads the value blocks on a posted receive, so the receive may move in
front of other tasks. Two rules keep this safe. Messages of one lane, values and gradients apart, keep the global order
on every device. And of one message a role awaits only so many values beside the one that it reads next, which bounds
the buffers (`prefetch` says how many). Receives that come too early for that move back, but not in a lane of several
peers: what one of them waits for might wait behind it.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ssdsl.ir.action import At, Compute, End
from ssdsl.ir.comm import Transfer
from ssdsl.ir.parts import parts_read
from ssdsl.ir.program import Members
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.assign_lanes import shared_lanes
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.plan.plan import Phase

AHEAD = 2  # values of a message that may wait beside the one that is read next, where the plan does not say
Queue = deque[Carry]


def hoist_receives(lowering: Lowering) -> Lowering:
    """Moves the receives of each role in its tasks."""
    awaited, members, shared = AwaitedTransfers(lowering), Members(lowering.roles), shared_lanes(lowering)
    tasks = (_Posting(lowering, r, awaited, members, shared).all(tasks) for r, tasks in enumerate(lowering.tasks))
    return replace(lowering, tasks=tuple(map(tuple, tasks)))


class AwaitedTransfers:
    """What must have arrived before a task can start."""

    def __init__(self, lowering: Lowering) -> None:
        self.incoming: dict[int, dict[At, list[Carry]]] = {}
        self.returning: dict[int, list[Transfer]] = {}
        for function in lowering.functions:
            for given in function.inputs:
                if given.message is not None:
                    arriving = self.incoming.setdefault(function.number, {})
                    for part, at in parts_read(given, function.time):
                        arriving.setdefault(at, []).append(Carry(given.message, part, False))
        for message in lowering.messages:
            if isinstance(message, Transfer) and message.backward is not None:
                self.returning.setdefault(message.producer, []).append(message)

    def of(self, task: Compute) -> Iterator[Carry]:
        """The messages that a task waits for, in order, each once."""
        return iter(dict.fromkeys(self._of(task)))

    def _of(self, task: Compute) -> Iterator[Carry]:
        if task.phase is Phase.FORWARD:
            yield from self.incoming.get(task.function, {}).get(task.at, ())
        elif task.phase is not Phase.WGRAD:
            for transfer in self.returning.get(task.function, ()):
                yield Carry(transfer.number, task.at, True)


@dataclass(slots=True)
class _Posting:
    """The tasks of a role, one after another. `queues` are the messages of each lane that are still to come."""

    lowering: Lowering
    role: int
    awaited: AwaitedTransfers
    members: Members
    shared: frozenset[int]
    queues: dict[tuple[int, bool], Queue] = field(default_factory=dict)
    posted: set[Carry] = field(default_factory=set)
    unread: set[Carry] = field(default_factory=set)  # received or asked for
    ahead: dict[tuple[int, bool], int] = field(default_factory=dict)  # by message
    waiting: Counter[tuple[int, bool]] = field(default_factory=Counter)  # how many are unread, by message

    def all(self, tasks: tuple[Task, ...]) -> Iterator[Task]:
        for task in tasks:
            if isinstance(task, Carry):
                self.queues.setdefault(self._lane(task), deque()).append(task)
        for task in tasks:
            yield from self._early()
            if isinstance(task, Compute):
                read = [c for c in self.awaited.of(task) if self._is_receive(c)]
                for carry in read:
                    yield from self._through(carry)
                yield task
                for carry in self.unread.intersection(read):
                    self.unread.remove(carry)
                    self.waiting[carry.message, carry.gradient] -= 1
            elif not self._is_receive(task) or self._lane(task)[0] in self.shared:
                yield from self._through(task)

    def _early(self) -> Iterator[Task]:
        """The receives that have a buffer, in front of the lanes."""
        for queue in self.queues.values():
            while queue and self._is_receive(queue[0]) and self._buffers(queue[0]) > 0:
                yield from self._through(queue[0])

    def _buffers(self, carry: Carry) -> int:
        key = carry.message, carry.gradient
        if key not in self.ahead:
            self.ahead[key] = self._ahead(*key)
        return 1 + self.ahead[key] - self.waiting[key]

    def _ahead(self, message: int, gradient: bool) -> int:
        """What the plan says of an operator that reads the message, or its gradient."""
        found = self.lowering.messages[message]
        reader = self.lowering.functions[found.producer if gradient else found.consumer]
        marks = (self.lowering.plan.of(o.operator).ahead for o in reader.operators())
        return max((mark.value for mark in marks if mark is not None), default=AHEAD)

    def _through(self, carry: Carry) -> Iterator[Task]:
        """A message with those in front of it, unless it has been posted."""
        queue = self.queues[self._lane(carry)]
        while carry not in self.posted:
            first = queue.popleft()
            self.posted.add(first)
            if self._is_receive(first):
                self.unread.add(first)
                self.waiting[first.message, first.gradient] += 1
            yield first

    def _lane(self, carry: Carry) -> tuple[int, bool]:
        return self.lowering.messages[carry.message].lane, carry.gradient

    def _is_receive(self, carry: Carry) -> bool:
        """Whether the role only receives a message, and may do so early."""
        message = self.lowering.messages[carry.message]
        return isinstance(message, Transfer) and self.members.end(self.role, message, carry.gradient) is End.RECEIVE
