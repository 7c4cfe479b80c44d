"""Finds between which tasks of a role weights in parts stay once they are gathered (`keep OPS.weights through m`)."""

from collections.abc import Iterable, Sequence

from ssdsl.ir.function import Backward, Function
from ssdsl.ir.param import FlatParam, Kept
from ssdsl.ir.program import Compute
from ssdsl.lower.stages import Task
from ssdsl.plan.plan import Phase

Interval = tuple[int, int]  # the numbers of the first and of the last task


def kept_intervals(
    functions: Sequence[Function], flats: Iterable[FlatParam], tasks: Sequence[Task]
) -> dict[int, list[Interval]]:
    """By flat parameter, the intervals in which its weights stay, in order.

    An interval has all tasks in one direction that differ in nothing but the index that the weights stay through. Where
    two of them meet, as forwards and backwards of 1F1B do, the weights stay through both.
    """
    found: dict[int, list[Interval]] = {}
    for flat in flats:
        if flat.kept is not None:
            readers = {f.number: f for f in functions if any(flat.number in s.gathers for s in f.sections)}
            found[flat.number] = _joined(_groups(flat.kept, readers, tasks))
    return found


def _groups(kept: Kept, readers: dict[int, Function], tasks: Sequence[Task]) -> Iterable[Interval]:
    """The first and the last task of each interval, before those that meet are joined."""
    groups: dict[tuple[object, ...], Interval] = {}
    for k, task in enumerate(tasks):
        if isinstance(task, Compute) and (function := readers.get(task.function)) is not None:
            is_forward = task.phase is Phase.FORWARD
            if _gathers(task, function) and not (kept.in_backward and is_forward):
                key: tuple[object, ...] = ()
                if kept.through is not None:
                    rest = [(t.name, at) for t, at in zip(function.time, task.at, strict=True)]
                    key = is_forward, *(place for place in rest if place[0] != kept.through)
                groups[key] = groups.get(key, (k, k))[0], k
    return groups.values()


def _gathers(task: Compute, function: Function) -> bool:
    """Whether a task may gather weights: the second half of a backward finds what the first has left."""
    return task.phase is Phase.FORWARD or (function.backward is not Backward.NONE and task.phase is not Phase.WGRAD)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals in order, those that meet as one."""
    found: list[Interval] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
