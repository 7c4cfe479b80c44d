"""Chooses the clocked steps of a recorded run that count, and subtracts the time of the clock itself.

Every second step runs without the clock. So the total of what the clock adds is known, besides its own estimate.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from ssdsl.run.results import RankResult, Recorded, Spent
from ssdsl.runtime.profile.operator_clock import COLLECTIVE

TASK = re.compile(r"[FBDW]\d+\[")
IN_TASKS = ("F", "B", "D", "W", "R", "first gradient", "next gradient", "gather", "drop", "scatter")


def usual_steps(ranks: Sequence[RankResult]) -> Iterator[tuple[RankResult, list[Spent]]]:
    """The times of each rank's places in the steps that count, without the clock's own; empty for a run without clocked
    steps."""
    took = {n: sum(_spent_s(r.clocked[n]) for r in ranks) for n in ranks[0].clocked}
    steps = middle_half(took)
    for rank in ranks if steps else ():
        share = _share(rank, steps)
        for step in steps:
            yield rank, [_scaled(spent, share) for spent in rank.clocked[step]]


def middle_half(took: Mapping[int, float]) -> list[int]:
    """The middle half of the steps by time, which leaves out disturbances by other processes. All steps in it count,
    because in every step some operator is slow by chance.

    >>> middle_half({3: 1.0, 5: 9.0, 7: 1.2, 9: 1.1})
    [9, 7]
    """
    ordered, out = sorted(took, key=lambda n: took[n]), len(took) // 4
    return ordered[out : len(ordered) - out]


def _share(rank: RankResult, steps: Sequence[int]) -> float:
    """The ratio of computing in tasks in steps without the clock to what the clock reports."""
    first = min(rank.clocked)
    plain = {n: _tasks_s(s) for n, s in enumerate(rank.recorded) if n > first and n not in rank.clocked}
    said = mean(sum(sum(s.times_s) for s in rank.clocked[n] if s.what in IN_TASKS) for n in steps)
    return mean(plain[n] for n in middle_half(plain)) / said if plain and said else 1.0


def _tasks_s(step: Sequence[Recorded]) -> float:
    return sum(e.computed_s for e in step if TASK.match(e.name))


def _spent_s(step: Sequence[Spent]) -> float:
    """Seconds of a whole step, without the time of collectives, which counts as communication."""
    return sum(sum(s.times_s) for s in step if s.what != COLLECTIVE)


def _scaled(spent: Spent, share: float) -> Spent:
    if spent.what not in IN_TASKS:
        return spent
    return replace(spent, times_s=tuple(share * time_s for time_s in spent.times_s))
