"""When devices post receives: earlier than the program starts them.

The program starts a receive at its place in the global order, behind all that its message needs. The host that starts
it is ahead of the device, and what it starts waits for no computation: the device has posted a receive as soon as there
is a buffer for it, and no message before it in its lane.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ssdsl.ir.action import Action, Compute, End, Start, Wait
from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import Program, Role

Way = tuple[int, bool]  # a message, and whether it is its gradient


def roles_of_devices(program: Program) -> tuple[Role, ...]:
    """The roles, with their actions in the order in which their devices carry them out."""
    return tuple(replace(r, actions=tuple(_Role(program).all(r.actions))) for r in program.roles)


@dataclass(slots=True)
class _Role:
    """The reordering of one role's actions. `lanes` are the messages that are not posted yet, by lane and direction;
    `buffers` how many more values of a message may be received; `awaited` those that the next task reads."""

    program: Program
    lanes: dict[Way, deque[Start]] = field(default_factory=dict)
    buffers: dict[Way, int] = field(default_factory=dict)
    awaited: list[Way] = field(default_factory=list)
    posted: set[Start] = field(default_factory=set)

    def all(self, actions: tuple[Action, ...]) -> Iterator[Action]:
        """Yields the actions in their new order."""
        for action in actions:
            if isinstance(action, Start):
                self.lanes.setdefault(self._lane(action), deque()).append(action)
        yield from self._early()
        for action in actions:
            match action:
                case Start():
                    while action not in self.posted:
                        yield self._post(self.lanes[self._lane(action)])
                    yield from self._early()
                case Wait():
                    self.awaited.append((action.message, action.gradient))
                    yield action
                case Compute() if self.awaited:
                    yield action
                    for way in self.awaited:
                        self.buffers[way] = self.buffers.get(way, 0) + 1
                    self.awaited.clear()
                    yield from self._early()
                case _:
                    yield action

    def _early(self) -> Iterator[Start]:
        """Yields the receives at the front of lanes for which there is a buffer."""
        for lane in self.lanes.values():
            while lane and self._has_buffer(lane[0]):
                yield self._post(lane)

    def _post(self, lane: deque[Start]) -> Start:
        start = lane.popleft()
        self.posted.add(start)
        if start.end is End.RECEIVE:
            self.buffers[start.message, start.gradient] = self._left(start) - 1
        return start

    def _has_buffer(self, start: Start) -> bool:
        is_transfer = isinstance(self.program.messages[start.message], Transfer)
        return is_transfer and start.end is End.RECEIVE and self._left(start) > 0

    def _left(self, start: Start) -> int:
        """The buffers that are left for values of a message."""
        way = start.message, start.gradient
        if way not in self.buffers:
            message = self.program.messages[start.message]
            reader = self.program.functions[message.producer if start.gradient else message.consumer]
            self.buffers[way] = 1 + self.program.plan.ahead(o.operator for o in reader.operators())
        return self.buffers[way]

    def _lane(self, start: Start) -> Way:
        return self.program.messages[start.message].lane, start.gradient
