"""A clock for tasks that every micro-batch repeats, on whichever devices: passes that go over the stages several times,
tasks that all devices run together, two stages on a device.

The micro-batches are the turns of a loop, and the clock is its modulo schedule (software pipelining; Rau 1994): task o
of micro-batch m is due at

    period * m + at[o],

and every device runs what it has in the order in which it is due, as soon as it can. With a period of the busiest
device's seconds for one micro-batch there is no bubble but where the pipeline fills and empties. Tasks are placed one
after another where their devices are free in each period, forth from the first or back from the last; then some of them
are moved by whole periods, as long as the longest path becomes shorter within the memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

SLACK = (1.0, 1.02, 1.05, 1.1, 1.2)  # periods that are tried, times the least
MORE_SLACK = (1.35, 1.5, 2.0, 3.0)  # and where none of these fits into the memory
EFFORT = 3_000_000  # tasks that are placed at most, by default
SAME = 1e-9  # relative: a difference that is none


@dataclass(frozen=True, slots=True)
class Task:
    """What a micro-batch needs done: on all of `devices` at once, behind the tasks `after` (by their numbers, which are
    smaller). From its start each of the devices holds `takes`, from its end `gives` less."""

    devices: tuple[int, ...]
    seconds: float
    after: tuple[int, ...] = ()
    takes: float = 0.0
    gives: float = 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """The tasks of one micro-batch, how many micro-batches there are, seconds of a message between tasks on unlike
    devices, and what each device may hold."""

    tasks: tuple[Task, ...]
    micro_batches: int
    transfer: float = 0.0
    memory: tuple[float, ...] = ()

    @property
    def devices(self) -> int:
        """How many there are."""
        return 1 + max(d for task in self.tasks for d in task.devices)

    @property
    def loads(self) -> list[float]:
        """Seconds of each device for one micro-batch."""
        return [sum(t.seconds for t in self.tasks if d in t.devices) for d in range(self.devices)]

    @property
    def least(self) -> float:
        """No order is shorter. Before its first task o a device waits for what o waits for, as far as none of the tasks
        that it may run until then leaves the devices free on which that runs; and so behind its last task b, which is o
        or waits for it."""
        forth, back, behind = self._waits(), self.reversed()._waits(), self._behind()
        last, found = len(self.tasks) - 1, 0.0
        for d, load in enumerate(self.loads):
            idle = max(forth[d][o] + back[d][last - b] for o in forth[d] for b in behind[o] if last - b in back[d])
            found = max(found, self.micro_batches * load + idle)
        return found

    def reversed(self) -> "Loop":
        """The loop in which time runs backwards."""
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
        """Of each task: itself, and what waits for it."""
        found = [{o} for o in range(len(self.tasks))]
        for o in reversed(range(len(self.tasks))):
            for a in self.tasks[o].after:
                found[a] |= found[o]
        return found

    def _waits(self) -> list[dict[int, float]]:
        """For each device and each of its tasks: how long it does nothing before the first of these, at least."""
        behind, found = self._behind(), list[dict[int, float]]()
        for d in range(self.devices):
            own = [o for o, task in enumerate(self.tasks) if d in task.devices]
            found.append({o: self._wait(d, o, [self.tasks[a] for a in own if a not in behind[o]]) for o in own})
        return found

    def _wait(self, device: int, task: int, others: list[Task]) -> float:
        """That of one task, before which the device may run these others."""

        def idle(q: Task) -> float:
            shared = device in q.devices or any(set(q.devices).isdisjoint(o.devices) for o in others)
            return 0.0 if shared else q.seconds

        ends: list[float] = []  # of what is in front of the task, the time in which the device does nothing
        for o in range(task + 1):
            q = self.tasks[o]
            before = [ends[a] + idle(self.tasks[a]) + (0.0 if others else self.travel(a, q)) for a in q.after]
            ends.append(max(before, default=0.0))
        return ends[task]

    def travel(self, before: int, task: Task) -> float:
        """Seconds between a task and one that waits for it."""
        return 0.0 if set(self.tasks[before].devices) & set(task.devices) else self.transfer


@dataclass(frozen=True, slots=True)
class Clock:
    """When each task is due, the period, the seconds of all micro-batches run in that order, and those between the
    first start and the last end of the device for which that is longest."""

    at: tuple[float, ...]
    period: float
    step_s: float
    span_s: float


def clock(loop: Loop, effort: int = EFFORT) -> Iterator[Clock]:
    """Better and better clocks within the memory. It ends where none can be better, where no move of tasks by a period
    is, or when it has placed `effort` tasks."""
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


def run(loop: Loop, at: Sequence[float], period: float) -> Clock | None:
    """The clock with the seconds of its step; None where devices hold too much, or wait for each other."""
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
    return Clock(tuple(at), period, max(free), max(end - start for start, end in zip(first, free, strict=True)))


def _order(loop: Loop, device: int, at: Sequence[float], period: float) -> list[tuple[float, int, int]]:
    """When each task of a device is due, its number, and that of the micro-batch."""
    own = [o for o, task in enumerate(loop.tasks) if device in task.devices]
    return sorted((period * m + at[o], o, m) for o in own for m in range(loop.micro_batches))


def _lighter(loop: Loop, at: Sequence[float], period: float) -> list[float]:
    """The same where devices hold no more than they may: what takes memory on one is put off by whole periods."""
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
    """Modulo schedules: each task as early as its devices are free behind those that it waits for, or as late in front
    of those that wait for it."""
    for times in slack:
        period = times * max(loop.loads)
        for late in (False, True):
            for packed in (False, True):
                if (found := _placed(loop, period, late, packed)) is not None:
                    yield period, found


def _placed(loop: Loop, period: float, late: bool, packed: bool) -> list[float] | None:
    """One of them; `packed` puts tasks beside others, so that no gap is too small for any. None where one does not fit
    into the period."""
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
    """The first moment from `ready` on at which so many seconds are free in each period."""
    ends = [ready, *(ready + (start + length - ready) % period for start, length in taken)]
    moments = sorted(ends) if not packed or not taken else [*sorted(ends[1:]), ready]
    for moment in moments:
        if all(_apart(moment, seconds, start, length, period) for start, length in taken):
            return moment
    return None


def _apart(a: float, length: float, b: float, other: float, period: float) -> bool:
    """Whether two runs do not meet in any period."""
    small = period * SAME
    behind = (b - a) % period
    behind = 0.0 if behind > period - small else behind
    return length + other <= period + small and length <= behind + small and behind + other <= period + small


def _moves(loop: Loop, best: Clock) -> Iterator[list[float]]:
    """A task, or a run of them, one or two periods earlier or later; then those of one device."""
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
