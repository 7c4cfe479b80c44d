"""Regions: which positions of a dimension each part has, as runs (start, end), half open, in order and apart."""

import itertools
from collections.abc import Sequence

Run = tuple[int, int]
Runs = tuple[Run, ...]  # of one part
Regions = tuple[Runs, ...]  # of all parts


def parts_of(sizes: Sequence[int]) -> Regions:
    """The regions of parts of these sizes, one behind the other.

    >>> parts_of((5, 4, 4))
    (((0, 5),), ((5, 9),), ((9, 13),))
    """
    ends = [*itertools.accumulate(sizes)]
    return tuple(((end - size, end),) for size, end in zip(sizes, ends, strict=True))


def lengths_of(at: Regions) -> tuple[int, ...]:
    """How many positions each part has."""
    return tuple(sum(end - start for start, end in runs) for runs in at)


def overlap(runs: Runs, others: Runs) -> bool:
    """Whether two regions have a position in common.

    >>> overlap(((0, 4), (8, 9)), ((4, 8),)), overlap(((0, 4), (8, 9)), ((7, 12),))
    (False, True)
    """
    return any(max(a, c) < min(b, d) for a, b in runs for c, d in others)
