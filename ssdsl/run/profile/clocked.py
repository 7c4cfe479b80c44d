"""The steps of a recorded run that were clocked: which of them count, and what they would have taken without the clock.

Every second step runs without it, so what it adds to tasks is known in sum, beside what it knows of itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from ssdsl.run.results import RankResult, Recorded, Spent
from ssdsl.runtime.profile.operator_clock import COLLECTIVE

TASK = re.compile(r"[FBDW]\d+\[")
IN_TASKS = ("F", "B", "D", "W", "R", "first gradient", "next gradient", "gather", "drop", "scatter", COLLECTIVE)


def usual_steps(ranks: Sequence[RankResult]) -> Iterator[tuple[RankResult, list[Spent]]]:
    """What each rank's places took in the steps that count, without the clock; nothing of a run that had none."""
    took = {n: sum(_spent_s(r.clocked[n]) for r in ranks) for n in ranks[0].clocked}
    steps = middle_half(took)
    for rank in ranks if steps else ():
        share = _share(rank, steps)
        for step in steps:
            yield rank, [_scaled(spent, share) for spent in rank.clocked[step]]


def middle_half(took: Mapping[int, float]) -> list[int]:
    """The steps of the middle half, by the time they took: what some other process disturbed is not in them. Of these
    all counts: what is slow once in a while, now this operator and now that, is in every step.

    >>> middle_half({3: 1.0, 5: 9.0, 7: 1.2, 9: 1.1})
    [9, 7]
    """
    ordered, out = sorted(took, key=lambda n: took[n]), len(took) // 4
    return ordered[out : len(ordered) - out]


def _share(rank: RankResult, steps: Sequence[int]) -> float:
    """Which share of what the clock says of tasks they take in steps without it."""
    first = min(rank.clocked)
    plain = {n: _tasks_s(s) for n, s in enumerate(rank.recorded) if n > first and n not in rank.clocked}
    said = mean(sum(sum(s.times_s) for s in rank.clocked[n] if s.what in IN_TASKS) for n in steps)
    return mean(plain[n] for n in middle_half(plain)) / said if plain and said else 1.0


def _tasks_s(step: Sequence[Recorded]) -> float:
    return sum(e.end_s - e.start_s - e.waited_s for e in step if TASK.match(e.name))


def _spent_s(step: Sequence[Spent]) -> float:
    """All of a step; the time of what ranks `met` for is in that of their talk."""
    return sum(sum(s.times_s) for s in step if s.what != COLLECTIVE)


def _scaled(spent: Spent, share: float) -> Spent:
    if spent.what not in IN_TASKS:
        return spent
    return replace(spent, times_s=tuple(share * time_s for time_s in spent.times_s))
