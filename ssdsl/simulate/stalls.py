"""The seconds for which devices wait for each message, directly or through other devices.

A role that waits for another one also waits for what delays that one: the last stage of a pipeline waits a moment for
the stage before it, which waits for a slow link. So a message delays the role that reads it, from its sending to its
arrival, and all roles that wait for that role meanwhile. While other roles compute for a waiting role, no message
delays it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from ssdsl.ir.execute import Stall
from ssdsl.ir.program import Wait
from ssdsl.simulate.run import Trace

Carried = tuple[int, bool]  # a message's number, and whether it carries a gradient
Held = tuple[float, float, Carried]  # from, until


def held_up(trace: Trace) -> list[dict[Carried, float]]:
    """The seconds for which each role was held up, by message."""
    found: list[list[Held]] = [[] for _ in trace.ended]
    for stall in trace.stalls:  # each behind those that delayed it
        for start, end, carried in _held_in(stall, found[stall.last]):
            _append(found[stall.role], start, end, carried)
    return [_summed(own) for own in found]


def _held_in(stall: Stall, of_last: list[Held]) -> Iterator[Held]:
    """Yields what held up a role in a stall, in the order of time; `of_last` is what held up the role it waited for."""
    came = min(stall.came, stall.end)
    for number in range(bisect_right(of_last, stall.start, key=itemgetter(1)), len(of_last)):
        start, end, carried = of_last[number]
        if (start := max(start, stall.start)) >= came:
            break
        yield start, min(end, came), carried
    start = max(stall.start, stall.came)
    if isinstance(stall.action, Wait) and start < stall.end:
        yield start, stall.end, (stall.action.message, stall.action.gradient)


def _append(held: list[Held], start: float, end: float, carried: Carried) -> None:
    """Adds a time behind the others; two of one message that follow each other become one."""
    if held and held[-1][1] == start and held[-1][2] == carried:
        start = held.pop()[0]
    held.append((start, end, carried))


def _summed(held: list[Held]) -> dict[Carried, float]:
    found: dict[Carried, float] = {}
    for start, end, carried in held:
        found[carried] = found.get(carried, 0.0) + end - start
    return found
