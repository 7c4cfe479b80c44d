"""Regions: the positions of an axis that each part has, as disjoint runs (start, end), half open and in order.

Regions of parts may be of unequal sizes, and overlap: the windows of a convolution reach into the neighbours' parts.

>>> have, need = (((0, 5),), ((5, 9),), ((9, 13),)), (((0, 6),), ((4, 10),), ((8, 13),))
>>> [(p.peer, p.sent, p.received) for p in pieces(have, need, me=1, sums=False)]
[(0, ((0, 1),), ((0, 1),)), (1, ((0, 4),), ((1, 5),)), (2, ((3, 4),), ((5, 6),))]
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Run = tuple[int, int]
Runs = tuple[Run, ...]  # the region of one part
Regions = tuple[Runs, ...]  # the regions of all parts


class ExchangedRuns(NamedTuple):
    """Runs that two parts exchange. `sent` counts in the tensor that the part has, `received` in the one that it
    needs."""

    peer: int
    sent: Runs
    received: Runs


def length(runs: Runs) -> int:
    """The number of positions in some runs."""
    return sum(end - start for start, end in runs)


def parts_of(sizes: Sequence[int]) -> Regions:
    """The regions of consecutive parts of these sizes.

    >>> parts_of((5, 4, 4))
    (((0, 5),), ((5, 9),), ((9, 13),))
    """
    ends = [*itertools.accumulate(sizes)]
    return tuple(((end - size, end),) for size, end in zip(sizes, ends, strict=True))


def shared(a: Runs, b: Runs) -> Runs:
    """The positions in both.

    >>> shared(((0, 3), (6, 9)), ((2, 7),))
    ((2, 3), (6, 7))
    """
    found = ((max(s, t), min(e, f)) for s, e in a for t, f in b)
    return tuple(sorted((s, e) for s, e in found if s < e))


def without(a: Runs, b: Runs) -> Runs:
    """The positions of `a` that are not in `b`.

    >>> without(((0, 9),), ((2, 3), (5, 7)))
    ((0, 2), (3, 5), (7, 9))
    """
    left = list(a)
    for start, end in b:
        left = [(s, e) for x, y in left for s, e in ((x, min(y, start)), (max(x, end), y)) if s < e]
    return tuple(left)


def reach(runs: Runs, size: int, before: int, after: int) -> Runs:
    """The positions from `before` in front of each run to `after` behind it, of an axis of this size.

    >>> reach(((0, 3), (5, 6), (9, 10)), size=10, before=2, after=0)
    ((0, 6), (7, 10))
    """
    found: list[Run] = []
    for start, end in sorted((max(0, s - before), min(size, e + after)) for s, e in runs):
        if found and start <= found[-1][1]:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return tuple(found)


def local(runs: Runs, inside: Runs) -> Runs:
    """Converts runs of the whole axis to positions in a tensor that concatenates the runs `inside`.

    >>> local(((6, 8),), ((0, 3), (5, 9)))
    ((4, 6),)
    """
    found, before = [], 0
    for start, end in inside:
        for s, e in shared(runs, ((start, end),)):
            found.append((s - start + before, e - start + before))
        before += end - start
    return tuple(found)


def halves(runs: Runs) -> tuple[Runs, Runs]:
    """The first half of each run, and the second.

    >>> halves(((0, 2), (6, 9)))
    (((0, 1), (6, 8)), ((1, 2), (8, 9)))
    """
    cuts = [(start, (start + end + 1) // 2, end) for start, end in runs]
    return tuple((s, m) for s, m, _ in cuts), tuple((m, e) for _, m, e in cuts if m < e)


@lru_cache(maxsize=4096)
def pieces(have: Regions, need: Regions, me: int, *, sums: bool) -> tuple[ExchangedRuns, ...]:
    """The runs that part `me` exchanges with each part, itself included.

    With `sums` every part that has a position sends it to all that need it. Else one part sends it: the receiver itself
    if it has it, or the first that does.
    """
    found = []
    for peer in range(len(have)):
        sent = _given(have, need, me, peer, sums)
        received = _given(have, need, peer, me, sums)
        if sent or received:
            found.append(ExchangedRuns(peer, local(sent, have[me]), local(received, need[me])))
    return tuple(found)


@lru_cache(maxsize=1024)
def needs_exchange(have: Regions, need: Regions, *, sums: bool) -> bool:
    """Whether any part needs positions that it does not have."""
    every = (pieces(have, need, me, sums=sums) for me in range(len(have)))
    return any(p.peer != me and p.received for me, own in enumerate(every) for p in own)


def _given(have: Regions, need: Regions, source: int, target: int, sums: bool) -> Runs:
    """The runs that one part sends another."""
    runs = shared(have[source], need[target])
    if sums or source == target:
        return runs
    for earlier in (target, *range(source)):
        runs = without(runs, have[earlier])
    return runs
