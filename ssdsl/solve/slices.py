"""Cuts a sequence into slices that go through a pipeline one after another (TeraPipe: Li et al. 2021).

A slice of `l` tokens behind `c` earlier ones takes `t(l, c)` on a stage. The slices of M sequences take, on S stages,

    M * sum(t) + (S - 1) * max(t)

The least is exact. For a longest slice that is allowed, the shortest sum is a shortest path over the places of a grid,
and it only falls as longer slices are allowed; so an interval of longest slices takes at least the sum at its end and
the slice at its start, and intervals that cannot be better are left out.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise

SliceTime = Callable[[int, int], float]  # of so many tokens, behind so many


def step_of(time: SliceTime, lengths: Sequence[int], stages: int, sequences: int = 1) -> float:
    """The time of these slices of each sequence on a pipeline."""
    times = [time(b - a, a) for a, b in pairwise(accumulate(lengths, initial=0))]
    return sequences * sum(times) + (stages - 1) * max(times)


def slices(time: SliceTime, tokens: int, grid: int, stages: int, sequences: int = 1) -> tuple[int, ...]:
    """The lengths of the slices, multiples of `grid`, that take least."""
    places = tokens // grid
    table = [[time(grid * (b - a), grid * a) for a in range(b)] for b in range(1, places + 1)]  # by end and start
    limits = sorted({t for row in table for t in row})

    @cache
    def shortest(limit: int) -> tuple[float, list[int]]:
        return _shortest(table, limits[limit])

    best = float("inf")
    found: tuple[int, ...] = (tokens,)
    left = [(0.0, 0, len(limits) - 1)]  # by their bounds: intervals of longest slices
    while left and left[0][0] < best:
        _, low, high = heapq.heappop(left)
        middle = (low + high) // 2
        total, lengths = shortest(middle)
        if lengths:
            of_these = step_of(time, [grid * n for n in lengths], stages, sequences)
            if of_these < best:
                best, found = of_these, tuple(grid * n for n in lengths)
        if low < middle and lengths:  # else no slice is short enough there
            heapq.heappush(left, (sequences * total + (stages - 1) * limits[low], low, middle - 1))
        if middle < high:
            least = sequences * shortest(high)[0] + (stages - 1) * limits[middle + 1]
            heapq.heappush(left, (least, middle + 1, high))
    return found


def _shortest(table: Sequence[Sequence[float]], limit: float) -> tuple[float, list[int]]:
    """The shortest sum of slices of which none is longer than a limit, and their lengths; infinite without any."""
    sums, starts = [0.0], [0]
    for row in table:
        ways = [s + t if t <= limit else float("inf") for s, t in zip(sums, row, strict=True)]
        least = min(ways)
        sums.append(least)
        starts.append(ways.index(least))
    if sums[-1] == float("inf"):
        return sums[-1], []
    lengths, end = [], len(table)
    while end:
        lengths.append(end - starts[end])
        end = starts[end]
    return sums[-1], lengths[::-1]
