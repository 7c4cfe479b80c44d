"""Finds the communication that is exposed: for which a device waits, with nothing else to run.

A device computes, is exposed, or is idle. It is exposed in collectives that a task waits for, within it or before it
begins, while a message that it waits for is ready to leave or on its way, while gradients are reduced beside no task,
and while it waits for weights that other devices have updated. It is idle where another device has not come so far: to
a collective, or to the sending of a message. That device may itself be exposed; `stalls.py` follows such chains.

All that the links of a device carry for it is its communication. What is not exposed is hidden:

    computes     FFFFFFF    BBBBBB
    its links       mmmmmmmm   rrrrrrr       # a message to come, a reduction of gradients
    exposed             xxxx     xxxx  -> communication 15, exposed 8, hidden 7
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.execute import ActionPart, Stall, by_role
from ssdsl.ir.program import (
    BeginReduce,
    Compute,
    GatherParam,
    Members,
    Program,
    ScatterGrads,
    Start,
    Traced,
    Travel,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.record import Record
from ssdsl.simulate.price.costs import CommCost
from ssdsl.simulate.run import REDUCING, Interval, Trace

ROUNDING = 1e-12  # seconds
Span = tuple[float, float]


class CarriedTime(NamedTuple):
    """What the links of a device carry for it, in seconds from the start of the step."""

    start: float
    end: float
    sent: tuple[CommCost, ...]


class ExposedPart(StrEnum):
    """The kinds of communication for which a device waits."""

    COLLECTIVES = "collectives"  # of a task, or in flight between two
    MESSAGES = "messages"
    GRADIENTS = "gradients"  # reductions outside of tasks
    WEIGHTS = "weights"  # that other devices have updated


AWAITED: dict[type[Traced], ExposedPart] = {
    Wait: ExposedPart.MESSAGES,
    Travel: ExposedPart.COLLECTIVES,
    GatherParam: ExposedPart.WEIGHTS,
}


class Why(StrEnum):
    """The reason why communication did not start earlier, or hides behind nothing."""

    HERE = "this program waits where it starts it"
    DATA = "data: what it carries was computed just before"
    LONGER = "data: it takes longer than the product beside which it runs"
    ORDER = "the order of starts: its links carry others first"
    BUFFER = "a bound on memory: no buffer was free to receive it"
    CLUSTER = "the cluster does not overlap it"


class ExposedTime(Record):
    """The time for which a device waits for the communication of an action, in seconds from the start of the step."""

    start: float
    end: float
    action: Traced
    part: ExposedPart
    why: Why

    @property
    def time_s(self) -> float:
        """Its length in seconds."""
        return self.end - self.start


class Exposure(Record):
    """The communication of a device: `carried` is what its links carry for it, `exposed` the time for which it waits,
    both in the order of time. All of it together takes `communication_s` seconds."""

    communication_s: float
    carried: tuple[CarriedTime, ...]
    exposed: tuple[ExposedTime, ...]

    def parts(self) -> tuple[tuple[ExposedPart, float], ...]:
        """The exposed seconds of each kind."""
        return tuple((part, sum(x.time_s for x in self.exposed if x.part is part)) for part in ExposedPart)

    def not_started(self) -> Iterator[tuple[ExposedTime, float, float]]:
        """Yields the times of `exposed` in which the links carry nothing for the device, because they carry something
        for others, or no buffer is free."""
        later, until = deque(self.carried), 0.0
        for x in self.exposed:
            while later and later[0].start < x.end:
                carried = later.popleft()
                if carried.start > max(x.start, until):
                    yield x, max(x.start, until), carried.start
                until = max(until, carried.end)
            if x.end > max(x.start, until):
                yield x, max(x.start, until), x.end


def exposures(program: Program, trace: Trace, cluster: Cluster) -> list[Exposure]:
    """The communication of each role, of one of its devices."""
    stalls, carried = by_role(trace.stalls, len(trace.ended)), _carried(program, trace)
    found = []
    for role, (intervals, waits) in enumerate(zip(trace.ran, stalls, strict=True)):
        times = [*_of_intervals(intervals, cluster), *(x for stall in waits for x in _of_stall(stall))]
        exposed = tuple(sorted((x for x in times if x.end > x.start), key=lambda x: (x.start, x.end)))
        spans = [*((x.start, x.end) for x in carried[role]), *((x.start, x.end) for x in exposed)]
        found.append(Exposure(_length(spans), tuple(sorted(carried[role], key=lambda x: x.start)), exposed))
    return found


# -- what a device waits for -------------------------------------------------------------------------------------------


def _of_intervals(intervals: Iterable[Interval], cluster: Cluster) -> Iterator[ExposedTime]:
    """Yields what is exposed while a role runs its actions: the end of a task, as charts draw it; all of a reduction or
    a gather; the start of an update whose costs still complete gradients."""
    for x in intervals:
        if x.part is not ActionPart.RUN:
            continue
        match x.action:
            case Compute():
                why = Why.LONGER if x.cost.hidden_s else Why.HERE
                yield ExposedTime(x.end - _waits_s(x), x.end, x.action, ExposedPart.COLLECTIVES, why)
            case Update():
                end = x.start + x.cost.communication_s
                yield ExposedTime(x.start, end, x.action, ExposedPart.GRADIENTS, Why.HERE)
            case GatherParam():
                yield ExposedTime(x.start, x.end, x.action, ExposedPart.WEIGHTS, Why.CLUSTER)
            case Travel():
                yield ExposedTime(x.start, x.end, x.action, ExposedPart.COLLECTIVES, Why.CLUSTER)
            case action if isinstance(action, REDUCING):
                yield ExposedTime(x.start, x.end, action, ExposedPart.GRADIENTS, _of_reduction(action, cluster))


def _waits_s(x: Interval) -> float:
    """The seconds of a task in which it waits for its collectives."""
    return x.cost.communication_s if x.cost.compute_s else x.end - x.start


def _of_reduction(action: Traced, cluster: Cluster) -> Why:
    """The reason why a reduction hides behind no task: on this cluster none does, or the program waits for it."""
    is_late = isinstance(action, BeginReduce) and not cluster.overlaps_collectives
    return Why.CLUSTER if is_late else Why.HERE


def _of_stall(stall: Stall) -> Iterator[ExposedTime]:
    """Yields what is exposed while a role waits: from when all roles that send have come until the data is there. What
    the data waits for before it leaves comes first: a free link, or a buffer where it arrives."""
    start = max(stall.start, stall.came)
    match stall.action:
        case Start():  # a sender that waits until its message has left
            yield ExposedTime(start, stall.end, stall.action, ExposedPart.MESSAGES, Why.CLUSTER)
        case Wait() | Travel() | ScatterGrads() | WaitReduce() | GatherParam() as action:
            part = AWAITED.get(type(action), ExposedPart.GRADIENTS)
            late = max(0.0, stall.left - stall.came)
            leaves = min(stall.end, start + late)
            by_buffer = stall.left - stall.asked < ROUNDING
            yield ExposedTime(start, leaves, action, part, Why.BUFFER if by_buffer else Why.ORDER)
            yield ExposedTime(leaves, stall.end, action, part, Why.DATA)
        case _:
            pass  # until others come: idle


# -- what its links carry ----------------------------------------------------------------------------------------------


def _carried(program: Program, trace: Trace) -> defaultdict[int, list[CarriedTime]]:
    """What the links of each role carry for it. Of a task that is the end of its computing, if an operator hides
    collectives, and what is exposed."""
    members, found = Members(program.roles), defaultdict[int, list[CarriedTime]](list)
    for x in trace.intervals:
        match x.part:
            case ActionPart.SENT:
                assert isinstance(x.action, Start)
                for role in members.ends(program.messages[x.action.message], x.action.gradient)[0]:
                    found[role].append(CarriedTime(x.start, x.end, x.cost.sent))
            case ActionPart.RECEIVED:
                found[x.role].append(CarriedTime(x.start - x.cost.latency_s, x.end, x.cost.sent))
            case _ if x.cost.sent:
                start = max(x.start, x.end - _waits_s(x) - x.cost.hidden_s)
                found[x.role].append(CarriedTime(start, x.end, x.cost.sent))
    return found


def _length(spans: Iterable[Span]) -> float:
    """The length of all spans together; where some overlap, the time counts once.

    >>> _length([(0.0, 2.0), (1.0, 3.0), (4.0, 5.0)])
    4.0
    """
    length, until = 0.0, 0.0
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length
