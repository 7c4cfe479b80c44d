"""Regions: the positions of a dimension that each part has, as runs (start, end), half open, sorted and disjoint."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from ssdsl.runtime.layout.regions import Regions as Regions
from ssdsl.runtime.layout.regions import Run as Run
from ssdsl.runtime.layout.regions import Runs as Runs
from ssdsl.runtime.layout.regions import parts_of as parts_of

Number = TypeVar("Number", int, float)


def merged(runs: Iterable[tuple[Number, Number]]) -> tuple[tuple[Number, Number], ...]:
    """The runs in order, with touching ones joined. The runs must be disjoint.

    >>> merged([(6, 8), (0, 2), (2, 4)])
    ((0, 4), (6, 8))
    """
    found: list[tuple[Number, Number]] = []
    for start, end in sorted(runs):
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return tuple(found)


def ranges(numbers: Iterable[int], dash: str = "-") -> list[str]:
    """Consecutive numbers as `first-last`.

    >>> ranges([7, 0, 1, 2])
    ['0-2', '7']
    """
    runs = merged((number, number + 1) for number in numbers)
    return [str(start) if end == start + 1 else f"{start}{dash}{end - 1}" for start, end in runs]


def on_axis(kept: Sequence[tuple[int, Runs]]) -> Runs:
    """The positions of an axis that fuses several dimensions, given the positions that are kept of each.

    `kept` has the size and the runs of each dimension, the outermost first. For an image of 3 rows and 4 columns whose
    pixels are one axis: the rows 1 and 2, then the columns 0 and 1:

    >>> on_axis([(3, ((1, 3),)), (4, ((0, 4),))]), on_axis([(3, ((0, 3),)), (4, ((0, 2),))])
    (((4, 12),), ((0, 2), (4, 6), (8, 10)))
    """
    found: Runs = ((0, 1),)
    for size, runs in kept:
        if runs == ((0, size),):
            found = tuple((start * size, end * size) for start, end in found)
        else:
            outer = (at for start, end in found for at in range(start, end))
            found = merged((at * size + start, at * size + end) for at in outer for start, end in runs)
    return found


def lengths_of(at: Regions) -> tuple[int, ...]:
    """The number of positions that each part has."""
    return tuple(sum(end - start for start, end in runs) for runs in at)


@lru_cache(maxsize=1024)
def overlapping(reads: Regions, parts: Regions) -> tuple[tuple[int, ...], ...]:
    """For each region of `reads`, the numbers of the parts that overlap it.

    >>> overlapping((((0, 4), (8, 9)), ((4, 8),)), parts_of((4, 4, 4)))
    ((0, 2), (1,))
    """
    return tuple(
        tuple(k for k, own in enumerate(parts) if any(max(a, c) < min(b, d) for a, b in runs for c, d in own))
        for runs in reads
    )
