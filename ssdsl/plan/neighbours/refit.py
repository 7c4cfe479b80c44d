"""Cuts a dimension of another size by the indices that cut it in a plan.

Of the indices that cut one dimension, at most one may have unequal parts, a limit of the lowering
(`rewrite/divide_dims.py`). If that is not enough, the dimension is cut less: an index in time gets fewer parts, or one
over devices is left out, and they compute copies.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ssdsl.plan.regions import Digit, Regions, near_equal, stated
from ssdsl.record import Record, replace

Keep = Literal["regions", "sizes", "equal"]  # stated regions stay in place; parts may be unequal runs; all are equal


class IndexParts(Record):
    """One index of a dimension, with its number of parts, which lie on devices, or run one after another in time.

    Regions that the plan states are shares: those of `into dp = [4, 12]` are `((0, 1),)` and `((1, 4),)`, a quarter and
    the rest.
    """

    name: str
    digit: Digit
    in_time: bool


def shares(digit: Digit) -> Digit:
    """The digit with its regions in the smallest whole numbers that have the same ratios.

    >>> shares(Digit(2, at=(((0, 4), (12, 16)), ((4, 12),)))).at  # a zig-zag
    (((0, 1), (3, 4)), ((1, 3),))
    """
    if digit.at is None:
        return digit
    unit = math.gcd(*(end for runs in digit.at for run in runs for end in run))
    return replace(digit, at=tuple(tuple((start // unit, end // unit) for start, end in runs) for runs in digit.at))


def refit(size: int, cuts: Sequence[IndexParts], keep: Keep) -> Mapping[str, Digit]:
    """The cuts of a dimension of this size by these indices, the outermost first: over as many devices as possible,
    then into as many parts in time. Stated regions stay where they are, if they are kept and no part is empty. An index
    of one part does not cut.

    >>> zigzag, dp, m = Digit(2, at=(((0, 1), (3, 4)), ((1, 3),))), Digit(2), Digit(4)
    >>> refit(11, [IndexParts("cp", zigzag, False)], "regions")["cp"].at
    (((0, 2), (8, 11)), ((2, 8),))
    >>> found = refit(12, [IndexParts("dp", dp, False), IndexParts("m", m, True)], "sizes")  # 6 each: 2, 2, 1, 1
    >>> found["dp"] == dp, found["m"].at
    (True, (((0, 2),), ((2, 4),), ((4, 5),), ((5, 6),)))
    >>> found = refit(9, [IndexParts("dp", dp, False), IndexParts("m", m, True)], "sizes")  # 6 and 3, in thirds
    >>> found["dp"].at, found["m"] == Digit(3)
    ((((0, 6),), ((6, 9),)), True)
    >>> refit(5, [IndexParts("dp", dp, False)], "equal")["dp"].parts
    1
    """
    if keep == "regions" and (digits := _stated(size, cuts)) is not None:
        return digits
    found = max(_ways(size, cuts, keep != "equal"), key=lambda way: _worth(cuts, *way))
    return dict(zip((c.name for c in cuts), _fits(size, *found), strict=True))


def _stated(size: int, cuts: Sequence[IndexParts]) -> Mapping[str, Digit] | None:
    """The cuts if one index has stated regions, and equal parts of all others divide the size; else None."""
    (number, *more) = [n for n, cut in enumerate(cuts) if cut.digit.at is not None] or (None,)
    if number is None or more or size % math.prod(cut.digit.parts for n, cut in enumerate(cuts) if n != number):
        return None
    inner = math.prod(cut.digit.parts for cut in cuts[number + 1 :])  # the size of each run is a multiple of it
    units = size // math.prod(cut.digit.parts for cut in cuts[:number]) // inner
    at = _scaled(cuts[number].digit.at or (), units, inner)
    if not all(at):
        return None
    return {cut.name: stated(at, units * inner) if n == number else cut.digit for n, cut in enumerate(cuts)}


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
            elif (
                left >= cuts[odd].digit.parts or cuts[odd].in_time
            ):  # every device has a part; in time there may be fewer
                yield (*counts[:odd], min(left, cuts[odd].digit.parts), *counts[odd + 1 :]), odd


def _divisors(size: int, cut: IndexParts) -> list[int]:
    """The numbers of equal parts that an index may have: its own, fewer if it is in time, or 1."""
    fewer = range(2, cut.digit.parts) if cut.in_time else ()
    return [n for n in (1, *fewer, cut.digit.parts) if size % n == 0]


def _worth(cuts: Sequence[IndexParts], counts: Sequence[int], odd: int | None) -> tuple[int, bool, int, bool]:
    """A key to compare cuts by: more devices, devices with equal parts, more parts, all parts equal."""
    devices = math.prod(n for n, c in zip(counts, cuts, strict=True) if not c.in_time)
    return devices, odd is None or cuts[odd].in_time, math.prod(counts), odd is None


def _fits(size: int, counts: Sequence[int], odd: int | None) -> Iterator[Digit]:
    """Each index as it cuts the dimension, the outermost first, by the numbers of parts that `_ways` found."""
    for n, count in enumerate(counts):
        here, inner = size // math.prod(counts[:n]), math.prod(counts[n + 1 :])  # `inner` divides the size of each part
        yield stated(near_equal(here, count, inner), here) if n == odd else Digit(count)
