"""Moves receives to the time when devices post them: earlier than the program starts them.

The program starts a receive at its place in the global order, after all that its message needs. The host that starts
it is ahead of the device, and what it starts waits for no computation: the device has posted a receive as soon as there
is a buffer for it, and no message before it in its lane.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ssdsl.ir.comm import Transfer, functions_of
from ssdsl.ir.program import Action, Compute, End, Program, Role, Start, Wait
from ssdsl.record import replace


def roles_of_devices(program: Program) -> tuple[Role, ...]:
    """The roles, with their actions in the order in which their devices carry them out."""
    return tuple(replace(r, actions=tuple(_Role(program).all(r.actions))) for r in program.roles)


@dataclass(slots=True)
class _Way:
    """A message, or its gradient, on one role. `lane` are the messages of its lane that are not posted yet. If the role
    only receives it, `is_early`: then `buffers` more values of it may be received."""

    lane: deque[Start]
    is_early: bool
    buffers: int


class _Role(dict[tuple[int, bool], _Way]):
    """By message and direction, its `_Way` on a role; found at the first start."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.lanes: dict[tuple[int, bool], deque[Start]] = {}

    def all(self, actions: tuple[Action, ...]) -> Iterator[Action]:
        """Yields the actions in their new order."""
        for action in actions:
            if isinstance(action, Start):
                self._way(action).lane.append(action)
        awaited: list[_Way] = []  # what the next task reads
        yield from self._early()
        for action in actions:
            if isinstance(action, Start):
                lane = self[action.message, action.gradient].lane
                if lane and lane[0] is action:
                    yield self._post(lane)
                    yield from self._early()
                continue
            yield action
            if isinstance(action, Wait):
                awaited.append(self[action.message, action.gradient])
            elif isinstance(action, Compute) and awaited:
                for way in awaited:
                    way.buffers += 1
                awaited.clear()
                yield from self._early()

    def _early(self) -> Iterator[Start]:
        """Yields the receives at the front of lanes for which there is a buffer."""
        for lane in self.lanes.values():
            while lane and (way := self[lane[0].message, lane[0].gradient]).is_early and way.buffers > 0:
                yield self._post(lane)

    def _post(self, lane: deque[Start]) -> Start:
        start = lane.popleft()
        self[start.message, start.gradient].buffers -= 1
        return start

    def _way(self, start: Start) -> _Way:
        key = start.message, start.gradient
        if key not in self:
            message = self.program.messages[start.message]
            reader = self.program.functions[functions_of(message, start.gradient)[1]]
            ahead = self.program.plan.ahead(o.operator for o in reader.operators())
            lane = self.lanes.setdefault((message.lane, start.gradient), deque())
            self[key] = _Way(lane, isinstance(message, Transfer) and start.end is End.RECEIVE, 1 + ahead)
        return self[key]
