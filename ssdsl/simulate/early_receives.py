"""Moves receives to the time when devices post them: earlier than the program starts them.

The program starts a receive at its place in the global order, after all that its message needs. The host that starts
it is ahead of the device, and what it starts waits for no computation: the device has posted a receive as soon as there
is a buffer for it, and no message before it in its lane.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from ssdsl.ir.comm import Transfer, functions_of
from ssdsl.ir.function import ahead_of
from ssdsl.ir.program import Action, Compute, End, Program, Role, Start, Wait
from ssdsl.record import replace

Carried = tuple[int, bool]  # a message's number, and whether it carries a gradient
Lane = deque[Start]


def roles_of_devices(program: Program) -> tuple[Role, ...]:
    """The roles, with their actions in the order in which their devices carry them out."""
    ahead = ahead_of(program.plan, program.functions)
    return tuple(replace(r, actions=tuple(_Reordered(program, ahead, r.actions).actions)) for r in program.roles)


class _Reordered:
    """The `actions` of a role in their new order. `lanes` are the messages of each lane that are not posted yet. Of a
    message that the role only receives, `buffers` more values may be received."""

    def __init__(self, program: Program, ahead: Callable[[int], int], actions: Iterable[Action]) -> None:
        self.program, self.ahead = program, ahead
        self.actions: list[Action] = []
        self.buffers: dict[Carried, int] = {}
        self.lane_of: dict[Carried, Lane] = {}
        self.lanes: defaultdict[tuple[int, bool], Lane] = defaultdict(deque)
        for action in actions:
            if isinstance(action, Start):
                self._lane(action).append(action)
        self._post_early(self.lanes.values())
        self._reorder(actions)

    def _lane(self, start: Start) -> Lane:
        carried = start.message, start.gradient
        if carried not in self.lane_of:
            message = self.program.messages[start.message]
            self.lane_of[carried] = self.lanes[message.lane, start.gradient]
            if isinstance(message, Transfer) and start.end is End.RECEIVE:
                self.buffers[carried] = 1 + self.ahead(functions_of(message, start.gradient)[1])
        return self.lane_of[carried]

    def _reorder(self, actions: Iterable[Action]) -> None:
        awaited: list[Carried] = []  # what the next task reads
        for action in actions:
            if isinstance(action, Start):
                lane = self.lane_of[action.message, action.gradient]
                if lane and lane[0] is action:
                    self._post(lane)
                    self._post_early((lane,))
                continue
            self.actions.append(action)
            if isinstance(action, Wait) and (carried := (action.message, action.gradient)) in self.buffers:
                awaited.append(carried)
            elif isinstance(action, Compute) and awaited:
                for carried in awaited:
                    self.buffers[carried] += 1
                awaited.clear()
                self._post_early(self.lanes.values())

    def _post_early(self, lanes: Iterable[Lane]) -> None:
        """Posts the receives at the front of lanes for which there is a buffer."""
        for lane in lanes:
            while lane and self.buffers.get((lane[0].message, lane[0].gradient), 0) > 0:
                self._post(lane)

    def _post(self, lane: Lane) -> None:
        start = lane.popleft()
        self.actions.append(start)
        if (carried := (start.message, start.gradient)) in self.buffers:
            self.buffers[carried] -= 1
