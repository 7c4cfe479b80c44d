"""Finds the seconds for which devices wait for each message, directly or through other devices.

A role that waits for another one also waits for what delays that one: the last stage of a pipeline waits a moment for
the stage before it, which waits for a slow link. So a message delays the role that reads it, from its sending to its
arrival, and all roles that wait for that role meanwhile. While a role waits for another one that computes, no message
delays it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from ssdsl.ir.execute import Stall
from ssdsl.ir.program import Wait
from ssdsl.simulate.run import Trace

Carried = tuple[int, bool]  # a message's number, and whether it carries a gradient
Delay = tuple[float, float, Carried]  # a time (start and end, in seconds of the step), and the message that delayed


def delays_by_message(trace: Trace) -> list[dict[Carried, float]]:
    """The seconds by which each message delayed a role: a dict for each role, in the order of the roles."""
    found: list[list[Delay]] = [[] for _ in trace.ended]
    for stall in trace.stalls:  # each after the stalls that delayed it, so `found[stall.last]` is known up to its end
        for start, end, carried in _delays_in(stall, found[stall.last]):
            _append(found[stall.role], start, end, carried)
    return [_summed(own) for own in found]


def _delays_in(stall: Stall, of_last: list[Delay]) -> Iterator[Delay]:
    """Yields the delays of a role in a stall, in the order of time. Until the role `stall.last` comes they are that
    role's own delays (`of_last`, in the order of time). From then on the data of the awaited message is on its way."""
    came = min(stall.came, stall.end)
    first = bisect_right(of_last, stall.start, key=itemgetter(1))  # delays before it had ended when the stall began
    for number in range(first, len(of_last)):
        start, end, carried = of_last[number]
        if (start := max(start, stall.start)) >= came:
            break
        yield start, min(end, came), carried
    start = max(stall.start, stall.came)
    if isinstance(stall.action, Wait) and start < stall.end:
        yield start, stall.end, (stall.action.message, stall.action.gradient)


def _append(delays: list[Delay], start: float, end: float, carried: Carried) -> None:
    """Adds a delay after the others; two of one message that follow each other become one."""
    if delays and delays[-1][1] == start and delays[-1][2] == carried:
        start = delays.pop()[0]
    delays.append((start, end, carried))


def _summed(delays: list[Delay]) -> dict[Carried, float]:
    found: dict[Carried, float] = {}
    for start, end, carried in delays:
        found[carried] = found.get(carried, 0.0) + end - start
    return found
