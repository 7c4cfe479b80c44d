"""Cuts a dimension of another size by the indices that cut it in a plan.

Of the indices that cut one dimension, at most one may have unequal parts, a limit of the lowering
(`rewrite/divide_dims.py`). If that is not enough, the dimension is cut less: an index in time gets fewer parts, or one
over devices is left out, and they compute copies.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ssdsl.plan.regions import Regions, parts_of
from ssdsl.record import Record

Keep = Literal["regions", "sizes", "equal"]  # stated regions stay in place; parts may be unequal runs; all are equal


class IndexParts(Record):
    """One index of a dimension, with its number of parts, which lie on devices, or run one after another in time.

    `at` has the regions of its parts, if the plan states them, as shares: those of `into dp = [4, 12]` are `((0, 1),)`
    and `((1, 4),)`, a quarter and the rest.
    """

    name: str
    count: int
    in_time: bool
    at: Regions | None = None


class Fit(Record):
    """One index as it cuts another size: into `count` parts (1: not at all). `at` has their positions, if they are
    unequal."""

    count: int
    at: Regions | None = None


def shares(at: Regions | None) -> Regions | None:
    """The regions of parts in the smallest whole numbers that have the same ratios.

    >>> shares((((0, 4), (12, 16)), ((4, 12),)))  # a zig-zag
    (((0, 1), (3, 4)), ((1, 3),))
    """
    if at is None:
        return None
    unit = math.gcd(*(end for runs in at for run in runs for end in run))
    return tuple(tuple((start // unit, end // unit) for start, end in runs) for runs in at)


def refit(size: int, cuts: Sequence[IndexParts], keep: Keep) -> Mapping[str, Fit]:
    """The cuts of a dimension of this size by these indices, the outermost first: over as many devices as possible,
    then into as many parts in time. Stated regions stay where they are, if they are kept and no part is empty.

    >>> zigzag = (((0, 1), (3, 4)), ((1, 3),))
    >>> refit(11, [IndexParts("cp", 2, False, zigzag)], "regions")
    {'cp': Fit(count=2, at=(((0, 2), (8, 11)), ((2, 8),)))}
    >>> refit(12, [IndexParts("dp", 2, False), IndexParts("m", 4, True)], "sizes")  # 6 each: 2, 2, 1, 1
    {'dp': Fit(count=2, at=None), 'm': Fit(count=4, at=(((0, 2),), ((2, 4),), ((4, 5),), ((5, 6),)))}
    >>> refit(9, [IndexParts("dp", 2, False), IndexParts("m", 4, True)], "sizes")  # 6 and 3, in thirds
    {'dp': Fit(count=2, at=(((0, 6),), ((6, 9),))), 'm': Fit(count=3, at=None)}
    >>> refit(5, [IndexParts("dp", 2, False)], "equal")
    {'dp': Fit(count=1, at=None)}
    """
    if keep == "regions" and (stated := _stated(size, cuts)) is not None:
        return stated
    found = max(_ways(size, cuts, keep != "equal"), key=lambda way: _worth(cuts, *way))
    return dict(zip((c.name for c in cuts), _fits(size, *found), strict=True))


def _stated(size: int, cuts: Sequence[IndexParts]) -> Mapping[str, Fit] | None:
    """The cuts if one index has stated regions, and equal parts of all others divide the size; else None."""
    (number, *more) = [n for n, cut in enumerate(cuts) if cut.at is not None] or (None,)
    if number is None or more or size % math.prod(cut.count for n, cut in enumerate(cuts) if n != number):
        return None
    inner = math.prod(cut.count for cut in cuts[number + 1 :])  # the size of each run is a multiple of it
    units = size // math.prod(cut.count for cut in cuts[:number]) // inner
    at = _scaled(cuts[number].at or (), units, inner)
    if not all(at):
        return None
    are_equal = at == parts_of([units * inner // len(at)] * len(at))
    return {cut.name: Fit(cut.count, at if n == number and not are_equal else None) for n, cut in enumerate(cuts)}


def _scaled(at: Regions, units: int, unit: int) -> Regions:
    """Regions of so many units of some positions each, at the same shares of the whole; without empty runs.

    >>> _scaled((((0, 1), (3, 4)), ((1, 3),)), 6, 10)
    (((0, 10), (40, 60)), ((10, 40),))
    """
    total = max(end for runs in at for _, end in runs)
    moved = ([(s * units // total * unit, e * units // total * unit) for s, e in runs] for runs in at)
    return tuple(tuple((start, end) for start, end in runs if start < end) for runs in moved)


Way = tuple[tuple[int, ...], int | None]  # the number of parts of each index, and the one with unequal parts, if any


def _ways(size: int, cuts: Sequence[IndexParts], unequal: bool) -> Iterator[Way]:
    """All possible cuts: equal parts divide the size, and at most one index has unequal ones."""
    for odd in (None, *range(len(cuts))) if unequal else (None,):
        equal = [[1] if n == odd else _divisors(size, c) for n, c in enumerate(cuts)]
        for counts in itertools.product(*equal):
            left, rest = divmod(size, math.prod(counts))
            if rest:
                continue
            if odd is None:
                yield counts, None
            elif left >= cuts[odd].count or cuts[odd].in_time:  # every device has a part; in time there may be fewer
                yield (*counts[:odd], min(left, cuts[odd].count), *counts[odd + 1 :]), odd


def _divisors(size: int, cut: IndexParts) -> list[int]:
    """The numbers of equal parts that an index may have: its own, fewer if it is in time, or 1."""
    fewer = range(2, cut.count) if cut.in_time else ()
    return [n for n in (1, *fewer, cut.count) if size % n == 0]


def _worth(cuts: Sequence[IndexParts], counts: Sequence[int], odd: int | None) -> tuple[int, bool, int, bool]:
    """A key to compare cuts by: more devices, devices with equal parts, more parts, all parts equal."""
    devices = math.prod(n for n, c in zip(counts, cuts, strict=True) if not c.in_time)
    return devices, odd is None or cuts[odd].in_time, math.prod(counts), odd is None


def _fits(size: int, counts: Sequence[int], odd: int | None) -> Iterator[Fit]:
    """Each index as it cuts the dimension, the outermost first, by the numbers of parts that `_ways` found."""
    for n, count in enumerate(counts):
        if n != odd:
            yield Fit(count)
            continue
        inner = math.prod(counts[n + 1 :])  # the size of each part is a multiple of it
        each, more = divmod(size // math.prod(counts[:n]) // inner, count)  # the first `more` parts are larger by one
        sizes = [(each + (k < more)) * inner for k in range(count)]
        yield Fit(count, parts_of(sizes) if more else None)
