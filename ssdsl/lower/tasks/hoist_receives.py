"""Posts receives as early as there are buffers for them, so that transfers overlap with the receiver's computation.

`schedule_tasks.py` puts a receive where its value is nominally ready. The real value may come sooner, and then waits
until the receive is posted. A posted receive blocks only the task that reads the value, so it may move before other
tasks. Two rules keep this safe. Messages of one lane (values and gradients have different ones) keep the global order
on every device. And for each message a role awaits at most a fixed number of values beside the one that it reads next,
which bounds the buffers (`prefetch` sets that number). Receives that are too early for this bound move back; but not in
a lane in which a role has several peers, because one peer's message might then wait behind another's.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ssdsl.ir.action import Compute, End
from ssdsl.ir.comm import Message, Transfer
from ssdsl.ir.parts import reads_of_tasks
from ssdsl.ir.program import Members
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.assign_lanes import shared_lanes
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.plan.plan import Phase

AHEAD = 2  # the default of `prefetch`: values of a message that may be buffered beside the one that is read next
Queue = deque[Carry]


def hoist_receives(lowering: Lowering) -> Lowering:
    """Moves receives within the tasks of each role."""
    awaited, members, shared = AwaitedTransfers(lowering), Members(lowering.roles), shared_lanes(lowering)
    tasks = (
        tuple(_Posting(_Ways(lowering, role, members), awaited, shared).all(tasks))
        for role, tasks in enumerate(lowering.tasks)
    )
    return replace(lowering, tasks=tuple(tasks))


class AwaitedTransfers:
    """The messages that must have arrived before a task can start."""

    def __init__(self, lowering: Lowering) -> None:
        self.incoming = [reads_of_tasks(function) for function in lowering.functions]
        self.returning: dict[int, list[Transfer]] = {}
        for message in lowering.messages:
            if isinstance(message, Transfer) and message.backward is not None:
                self.returning.setdefault(message.producer, []).append(message)

    def of(self, task: Compute) -> Iterator[Carry]:
        """Yields the messages that a task waits for, in order, each once."""
        return iter(dict.fromkeys(self._of(task)))

    def _of(self, task: Compute) -> Iterator[Carry]:
        if task.phase is Phase.FORWARD:
            for given, part in self.incoming[task.function].get(task.at, ()):
                if given.message is not None:
                    yield Carry(given.message, part, False)
        elif task.phase is not Phase.WGRAD:
            for transfer in self.returning.get(task.function, ()):
                yield Carry(transfer.number, task.at, True)


class _Ways(dict[tuple[int, bool], "_Way"]):
    """By message and direction, the `_Way` of a role that takes part; found at the first look-up."""

    def __init__(self, lowering: Lowering, role: int, members: Members) -> None:
        super().__init__()
        self.lowering, self.role, self.members = lowering, role, members
        self.queues: dict[tuple[int, bool], Queue] = {}

    def __missing__(self, key: tuple[int, bool]) -> "_Way":
        number, gradient = key
        message = self.lowering.messages[number]
        end = self.members.end(self.role, message, gradient)
        arrives = isinstance(message, Transfer) and end is End.RECEIVE
        queue = self.queues.setdefault((message.lane, gradient), deque())
        self[key] = way = _Way(arrives, message.lane, queue, self._buffers(message, gradient) if arrives else 0)
        return way

    def _buffers(self, message: Message, gradient: bool) -> int:
        """The number of values that may wait: the largest `prefetch` of an operator in the function that reads the
        message, or its gradient; and one more for the value that is read next."""
        reader = self.lowering.functions[message.producer if gradient else message.consumer]
        marks = (self.lowering.plan.of(o.operator).ahead for o in reader.operators())
        return 1 + max((mark.value for mark in marks if mark is not None), default=AHEAD)


@dataclass(slots=True)
class _Way:
    """A message, or its gradient, on one role. `arrives`: the role only receives it, and may do so early. `queue` holds
    the messages of its lane that are not posted yet; `buffers` is how many more values may wait."""

    arrives: bool
    lane: int
    queue: Queue
    buffers: int


@dataclass(slots=True)
class _Posting:
    """The reordering of one role's tasks."""

    ways: _Ways
    awaited: AwaitedTransfers
    shared: frozenset[int]
    posted: set[Carry] = field(default_factory=set)
    unread: set[Carry] = field(default_factory=set)  # posted receives whose values no task has read yet

    def all(self, tasks: tuple[Task, ...]) -> Iterator[Task]:
        """Yields the tasks with receives in their new places."""
        for task in tasks:
            if isinstance(task, Carry):
                self.ways[task.message, task.gradient].queue.append(task)
        for task in tasks:
            yield from self._early()
            if isinstance(task, Compute):
                read = [c for c in self.awaited.of(task) if self.ways[c.message, c.gradient].arrives]
                for carry in read:
                    yield from self._through(carry)
                yield task
                for carry in self.unread.intersection(read):
                    self.unread.remove(carry)
                    self.ways[carry.message, carry.gradient].buffers += 1
            else:
                way = self.ways[task.message, task.gradient]
                if not way.arrives or way.lane in self.shared:
                    yield from self._through(task)

    def _early(self) -> Iterator[Task]:
        """Yields the receives at the front of the lanes for which there is a buffer."""
        for queue in self.ways.queues.values():
            while queue:
                way = self.ways[queue[0].message, queue[0].gradient]
                if not way.arrives or way.buffers <= 0:
                    break
                yield from self._through(queue[0])

    def _through(self, carry: Carry) -> Iterator[Task]:
        """Yields a message behind those in front of it in its lane; nothing if it has been posted."""
        queue = self.ways[carry.message, carry.gradient].queue
        while carry not in self.posted:
            first = queue.popleft()
            self.posted.add(first)
            way = self.ways[first.message, first.gradient]
            if way.arrives:
                self.unread.add(first)
                way.buffers -= 1
            yield first
