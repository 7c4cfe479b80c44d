"""Finds a clock for tasks that every micro-batch repeats, on any devices: passes that go over the stages several times,
tasks that all devices run together, two stages on a device.

The micro-batches are the turns of a loop, and the clock is its modulo schedule (software pipelining; Rau 1994): task o
of micro-batch m is due at

    period * m + at[o],

and every device runs its tasks in the order in which they are due, each as soon as it can. If the period is the busiest
device's seconds for one micro-batch, there is no bubble except where the pipeline fills and empties. Tasks are placed
one after another where their devices are free in each period, forth from the first or back from the last. Then some of
them are moved by whole periods, as long as the longest path becomes shorter within the memory.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil

from ssdsl.record import Record

SLACK = (1.0, 1.02, 1.05, 1.1, 1.2)  # periods that are tried, as multiples of the least
MORE_SLACK = (1.35, 1.5, 2.0, 3.0)  # tried if none of these fits into the memory
EFFORT = 3_000_000  # tasks that are placed at most, by default
SAME = 1e-9  # smaller relative differences do not count


class Task(Record):
    """A task of each micro-batch: it runs on all of `devices` at once, after the tasks `after` (smaller numbers). Each
    device holds `takes` more memory from its start, and `gives` less from its end."""

    devices: tuple[int, ...]
    seconds: float
    after: tuple[int, ...] = ()
    takes: float = 0.0
    gives: float = 0.0


class Loop(Record):
    """The tasks of one micro-batch, the number of micro-batches, the seconds of a message between tasks without a
    common device, and the memory of each device (empty: unbounded)."""

    tasks: tuple[Task, ...]
    micro_batches: int
    transfer: float = 0.0
    memory: tuple[float, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices."""
        return 1 + max(d for task in self.tasks for d in task.devices)

    @property
    def loads(self) -> list[float]:
        """The seconds of each device for one micro-batch."""
        return [sum(t.seconds for t in self.tasks if d in t.devices) for d in range(self.devices)]

    @property
    def least(self) -> float:
        """A lower bound on the seconds of every order: for each device its work, and the least time in which it is
        idle.

        Before its first task o, a device waits for the tasks that o waits for. The time of such a task counts only if
        the device can do nothing beside it: it does not run the task itself, and every other task that it could run
        before o needs one of the same devices. The same holds, backwards in time, after the device's last task, which
        is o or waits for o.
        """
        forth, back, behind = self._waits(), self.reversed()._waits(), self._behind()
        last, found = len(self.tasks) - 1, 0.0
        for d, load in enumerate(self.loads):
            idle = max(forth[d][o] + back[d][last - b] for o in forth[d] for b in behind[o] if last - b in back[d])
            found = max(found, self.micro_batches * load + idle)
        return found

    def reversed(self) -> "Loop":
        """The loop with time running backwards."""
        last = len(self.tasks) - 1
        readers: list[list[int]] = [[] for _ in self.tasks]
        for o, task in enumerate(self.tasks):
            for a in task.after:
                readers[a].append(last - o)
        turned = (
            Task(t.devices, t.seconds, tuple(r), t.gives, t.takes)
            for t, r in zip(reversed(self.tasks), reversed(readers), strict=True)
        )
        return Loop(tuple(turned), self.micro_batches, self.transfer, self.memory)

    def _behind(self) -> list[set[int]]:
        """For each task, the set of itself and of all tasks that wait for it."""
        found = [{o} for o in range(len(self.tasks))]
        for o in reversed(range(len(self.tasks))):
            for a in self.tasks[o].after:
                found[a] |= found[o]
        return found

    def _waits(self) -> list[dict[int, float]]:
        """For each device and each of its tasks: the least time that the device is idle if that task is its first."""
        behind, found = self._behind(), list[dict[int, float]]()
        for d in range(self.devices):
            own = [o for o, task in enumerate(self.tasks) if d in task.devices]
            found.append({o: self._wait(d, o, [self.tasks[a] for a in own if a not in behind[o]]) for o in own})
        return found

    def _wait(self, device: int, task: int, others: list[Task]) -> float:
        """The least time that a device is idle before `task`, if it may run the tasks `others` first."""

        def idle(q: Task) -> float:
            shared = device in q.devices or any(set(q.devices).isdisjoint(o.devices) for o in others)
            return 0.0 if shared else q.seconds

        ends: list[float] = []  # for each task up to this one, the idle time until its end
        for o in range(task + 1):
            q = self.tasks[o]
            before = [ends[a] + idle(self.tasks[a]) + (0.0 if others else self.travel(a, q)) for a in q.after]
            ends.append(max(before, default=0.0))
        return ends[task]

    def travel(self, before: int, task: Task) -> float:
        """The seconds of the message between a task and one that waits for it; 0 if they share a device."""
        return 0.0 if set(self.tasks[before].devices) & set(task.devices) else self.transfer


class LoopClock(Record):
    """The time at which each task is due, the period, the seconds of all micro-batches run in that order, and the
    longest time between the first start and the last end on a device."""

    at: tuple[float, ...]
    period: float
    step_s: float
    span_s: float


def clock(loop: Loop, effort: int = EFFORT) -> Iterator[LoopClock]:
    """Better and better clocks within the memory. Ends when the lower bound is reached, when no move of tasks by a
    period is better, or when `effort` tasks were placed."""
    left = max(1, effort // (len(loop.tasks) * loop.micro_batches))  # clocks that may be tried
    least, best = loop.least * (1 + SAME), None
    starts = ((period, at) for slack in (SLACK, MORE_SLACK) if best is None for period, at in _starts(loop, slack))
    for period, at in islice(starts, left):
        left -= 1
        found = run(loop, _lighter(loop, at, period), period)
        if found is not None and (best is None or found.step_s < best.step_s * (1 - SAME)):
            best = found
            yield best
    while best is not None and best.step_s > least:
        better = None
        for at in islice(_moves(loop, best), left):
            left -= 1
            found = run(loop, at, best.period)
            if found is not None and found.step_s < best.step_s * (1 - SAME):
                better = found
                yield better
                break
        best = better


def run(loop: Loop, at: Sequence[float], period: float) -> LoopClock | None:
    """The clock with the seconds of its step; None if devices hold too much, or wait for each other."""
    tasks, count = loop.tasks, loop.micro_batches
    order = [_order(loop, d, at, period) for d in range(loop.devices)]
    if not all(_fits(loop, d, own) for d, own in enumerate(order)):
        return None
    place, free, first = [0] * loop.devices, [0.0] * loop.devices, [-1.0] * loop.devices
    ends = [[-1.0] * count for _ in tasks]
    moved = True
    while moved:
        moved = False
        for d, own in enumerate(order):
            while place[d] < len(own):
                _, o, m = own[place[d]]
                task = tasks[o]
                together = all(place[e] < len(order[e]) and order[e][place[e]][1:] == (o, m) for e in task.devices)
                if not together or any(ends[a][m] < 0 for a in task.after):
                    break
                arrived = [ends[a][m] + loop.travel(a, task) for a in task.after]
                start = max([*arrived, *(free[e] for e in task.devices)])
                ends[o][m], moved = start + task.seconds, True
                for e in task.devices:
                    first[e] = start if first[e] < 0 else first[e]
                    free[e], place[e] = ends[o][m], place[e] + 1
    if any(p < len(own) for p, own in zip(place, order, strict=True)):
        return None
    return LoopClock(tuple(at), period, max(free), max(end - start for start, end in zip(first, free, strict=True)))


def _order(loop: Loop, device: int, at: Sequence[float], period: float) -> list[tuple[float, int, int]]:
    """The tasks of a device in order: when each is due, its number, and the micro-batch."""
    own = [o for o, task in enumerate(loop.tasks) if device in task.devices]
    return sorted((period * m + at[o], o, m) for o in own for m in range(loop.micro_batches))


def _lighter(loop: Loop, at: Sequence[float], period: float) -> list[float]:
    """The clock with tasks that take memory put off by whole periods, where a device would hold too much."""
    found, in_flight = list(at), ceil((max(at) - min(at)) / period) + 1
    for d in range(loop.devices if loop.memory else 0):
        taking = [o for o, task in enumerate(loop.tasks) if task.takes and d in task.devices]
        alone = [o for o in taking if loop.tasks[o].devices == (d,)] or taking
        for _ in range(in_flight):
            if _fits(loop, d, _order(loop, d, found, period)):
                break
            for o in alone:
                found[o] += period
    return found


def _fits(loop: Loop, device: int, order: Sequence[tuple[float, int, int]]) -> bool:
    if not loop.memory:
        return True
    held = 0.0
    for _, o, _ in order:
        held += loop.tasks[o].takes
        if held > loop.memory[device] * (1 + SAME):
            return False
        held -= loop.tasks[o].gives
    return True


def _starts(loop: Loop, slack: Sequence[float]) -> Iterator[tuple[float, list[float]]]:
    """Modulo schedules: each task as early as its devices are free after the tasks that it waits for, or as late as
    possible before the tasks that wait for it."""
    for times in slack:
        period = times * max(loop.loads)
        for late in (False, True):
            for packed in (False, True):
                if (found := _placed(loop, period, late, packed)) is not None:
                    yield period, found


def _placed(loop: Loop, period: float, late: bool, packed: bool) -> list[float] | None:
    """One modulo schedule; None if a task does not fit into the period. `packed` puts tasks directly after others,
    so that no gaps are left that are too small for any task."""
    size = len(loop.tasks)
    readers: list[list[int]] = [[] for _ in range(size)]
    for o, task in enumerate(loop.tasks):
        for a in task.after:
            readers[a].append(o)
    at, busy = [0.0] * size, [list[tuple[float, float]]() for _ in range(loop.devices)]
    for o in reversed(range(size)) if late else range(size):
        task = loop.tasks[o]
        if late:  # time runs backwards
            ready = max((-at[r] + loop.travel(o, loop.tasks[r]) for r in readers[o]), default=0.0)
        else:
            ready = max((at[a] + loop.tasks[a].seconds + loop.travel(a, task) for a in task.after), default=0.0)
        taken = sorted(run for d in task.devices for run in busy[d])
        start = _free(taken, ready, task.seconds, period, packed)
        if start is None:
            return None
        for d in task.devices:
            busy[d].append((start % period, task.seconds))
        at[o] = -start - task.seconds if late else start
    first = min(at)
    return [t - first for t in at]


def _free(taken: list[tuple[float, float]], ready: float, seconds: float, period: float, packed: bool) -> float | None:
    """The first moment from `ready` on at which `seconds` are free in each period."""
    # A free run can only begin at `ready`, or where a taken run ends: these are their first ends from `ready` on.
    ends = [ready, *(ready + (start + length - ready) % period for start, length in taken)]
    moments = sorted(ends) if not packed or not taken else [*sorted(ends[1:]), ready]
    for moment in moments:
        if all(_apart(moment, seconds, start, length, period) for start, length in taken):
            return moment
    return None


def _apart(a: float, length: float, b: float, other: float, period: float) -> bool:
    """Whether two runs are disjoint in every period."""
    small = period * SAME
    behind = (b - a) % period
    behind = 0.0 if behind > period - small else behind
    return length + other <= period + small and length <= behind + small and behind + other <= period + small


def _moves(loop: Loop, best: LoopClock) -> Iterator[list[float]]:
    """Moves a task, or a run of tasks, by one or two periods; then all tasks of one device."""
    size = len(loop.tasks)
    runs = (
        [range(o, o + 1) for o in range(size)]
        + [range(o + 1) for o in range(size)]
        + [range(o, size) for o in range(size)]
    )
    own = [[o for o, t in enumerate(loop.tasks) if d in t.devices] for d in range(loop.devices)]
    for chosen in (*runs, *own):
        for turns in (1, -1, 2, -2):
            at = list(best.at)
            for o in chosen:
                at[o] += turns * best.period
            yield at
