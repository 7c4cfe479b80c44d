"""Computing and communication of one task, side by side: one queue computes, and each group of devices has a queue of
collectives, which run one after another in the order of their starts.

The program says where a collective starts and where it is awaited; this says when that is. A device computes for two
seconds, then needs what it has started to gather before, for three:

>>> events = [Begins("weights", "dp", 3.0), Computes(2.0), Awaits("weights"), Computes(1.0)]
>>> overlapped(events)
Overlapped(time_s=4.0, exposed={'weights': 1.0})

Both slow each other: with a contention of 1/2 the two seconds take as long as the gather.

>>> overlapped(events, contention=0.5)
Overlapped(time_s=4.0, exposed={'weights': 0.0})
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from ssdsl.ir.execute import slowdown_s

Key = Hashable


class Computes(NamedTuple):
    """The device computes, or is in a collective that blocks it."""

    time_s: float


class Begins(NamedTuple):
    """A collective starts, behind those that its `queue` (a group of devices) has; it takes `time_s`."""

    key: Key
    queue: Hashable
    time_s: float


class Awaits(NamedTuple):
    """The device goes on when a collective is done."""

    key: Key


Event = Computes | Begins | Awaits


class Overlapped(NamedTuple):
    """The seconds that a task takes, and for how many of them its device waits for each collective."""

    time_s: float
    exposed: dict[Key, float]


def overlapped(events: Iterable[Event], contention: float = 0.0) -> Overlapped:
    """The time of a task with these events. What it starts and does not await ends with the task. Beside a collective
    computing is slower, by the share `contention`."""
    now, free, done = 0.0, defaultdict[Hashable, float](float), dict[Key, float]()
    exposed: dict[Key, float] = {}
    for event in (*events, None):
        match event:
            case Computes(time_s):
                carried = [(now, max(free.values(), default=now))]
                now += time_s + slowdown_s(time_s, now, carried, contention)
            case Begins(key, queue, time_s):
                done[key] = free[queue] = max(now, free[queue]) + time_s
            case Awaits() | None:
                for key in [event.key] if event is not None else [*done]:
                    arrives = done.pop(key)
                    exposed[key] = exposed.get(key, 0.0) + max(0.0, arrives - now)
                    now = max(now, arrives)
    return Overlapped(now, exposed)
