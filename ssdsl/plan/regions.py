"""Part k of n: digits of a position, and the regions that each part has, as runs (start, end), half open, sorted and
disjoint."""

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from ssdsl.record import Record, replace
from ssdsl.runtime.layout.regions import Regions as Regions
from ssdsl.runtime.layout.regions import Run as Run
from ssdsl.runtime.layout.regions import Runs as Runs
from ssdsl.runtime.layout.regions import parts_of as parts_of

Number = TypeVar("Number", int, float)


class Digit(Record):
    """Part k of n: a position is in the part `position // stride % parts`.

    With `at` the parts are these regions instead, which may differ in size and overlap, and `stride` is 1.

    >>> rows = Digit(parts=4, stride=2)
    >>> [position // rows.stride % rows.parts for position in range(16)]
    [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]
    >>> rows.runs(16, part=1)
    ((2, 4), (10, 12))
    """

    parts: int
    stride: int = 1
    at: Regions | None = None

    @property
    def period(self) -> int:
        """The number of positions after which a plain digit repeats."""
        return self.stride * self.parts

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The sizes of parts that are regions."""
        return None if self.at is None else lengths_of(self.at)

    @property
    def is_unequal(self) -> bool:
        """Whether the parts differ in size."""
        return len({*(self.sizes or ())}) > 1

    @property
    def are_single(self) -> bool:
        """Whether each part is one run."""
        return all(len(runs) == 1 for runs in self.at or ())

    @property
    def are_runs(self) -> bool:
        """Whether the parts are runs, one after another."""
        return self.at is None or self.at == parts_of(lengths_of(self.at))

    def scaled(self, times: int) -> "Digit":
        """The digit where each position has become so many.

        >>> Digit(4).scaled(3), Digit(2, at=(((0, 2),), ((2, 3),))).scaled(10).at
        (Digit(parts=4, stride=3, at=None), (((0, 20),), ((20, 30),)))
        """
        if self.at is None:
            return replace(self, stride=self.stride * times)
        return replace(self, at=tuple(tuple((s * times, e * times) for s, e in runs) for runs in self.at))

    def runs(self, size: int, part: int) -> Runs:
        """The positions of one part, of a dimension of this size."""
        if self.at is not None:
            return self.at[part]
        starts = range(part * self.stride, size, self.period)
        return merged((start, start + self.stride) for start in starts)

    def regions(self, size: int) -> Regions:
        """The positions of each part, of a dimension of this size.

        >>> Digit(2, stride=6).regions(12), Digit(2, stride=3).regions(12)
        ((((0, 6),), ((6, 12),)), (((0, 3), (6, 9)), ((3, 6), (9, 12))))
        """
        return self.at or tuple(self.runs(size, part) for part in range(self.parts))


def digit_of(at: Regions, size: int) -> Digit | None:
    """The digit of parts that are these regions of a dimension: a plain one if that is the same, None if each part is
    the whole dimension.

    >>> digit_of((((0, 6),), ((6, 12),)), 12), digit_of((((0, 12),), ((0, 12),)), 12)
    (Digit(parts=2, stride=6, at=None), None)
    >>> digit_of((((0, 7),), ((5, 12),)), 12)
    Digit(parts=2, stride=1, at=(((0, 7),), ((5, 12),)))
    """
    if all(runs == ((0, size),) for runs in at):
        return None
    each, rest = divmod(size, len(at))
    if not rest and at == parts_of((each,) * len(at)):
        return Digit(len(at), each)
    return Digit(len(at), at=at)


def stated(at: Regions, size: int) -> Digit:
    """The digit of parts that a plan says are these regions: equal runs in order count in parts.

    >>> stated((((0, 6),), ((6, 12),)), 12), stated((((6, 12),), ((0, 6),)), 12).at
    (Digit(parts=2, stride=1, at=None), (((6, 12),), ((0, 6),)))
    """
    digit = digit_of(at, size)
    return Digit(len(at)) if digit is None or digit.at is None else digit


def innermost(digits: Iterable[Digit], size: int, parts: int) -> Digit | None:
    """The digit that cuts a dimension once more, inside of these digits; None if they leave runs that it cannot divide.

    >>> innermost([Digit(2, 8), Digit(4, 2)], 16, 2), innermost([], 9, 2)
    (Digit(parts=2, stride=1, at=None), None)
    """
    left = size
    for digit in digits:
        left = 0 if digit.at is not None else min(left, digit.stride)
    return Digit(parts, left // parts) if left and left % parts == 0 else None


def digits_over(at: Regions, size: int, counts: tuple[int, ...]) -> tuple[Digit | None, ...]:
    """The digits, on axes with `counts` devices, of parts that are these regions, one for each of their devices
    together: a plain digit on each axis if that is the same, and None along those on which the regions do not depend.

    >>> digits_over((((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)), 8, (2, 2))
    (Digit(parts=2, stride=4, at=None), Digit(parts=2, stride=2, at=None))
    >>> halos = (((0, 3),), ((1, 5),), ((3, 7),), ((5, 8),))
    >>> digits_over(halos, 8, (2, 2)) == (Digit(4, at=halos),) * 2
    True
    """
    devices = [*itertools.product(*map(range, counts))]
    of = dict(zip(devices, at, strict=True))
    cutting = [k for k in range(len(counts)) if any(of[d] != of[(*d[:k], 0, *d[k + 1 :])] for d in devices)]
    left = tuple(of[d] for d in devices if not any(c for k, c in enumerate(d) if k not in cutting))
    if len(cutting) < 2:
        found = [digit_of(left, size) for _ in cutting]
    elif (strides := _strides(size, left, tuple(counts[k] for k in cutting))) is not None:
        found = [Digit(counts[k], stride) for k, stride in zip(cutting, strides, strict=True)]
    else:
        found = [Digit(len(left), at=left)] * len(cutting)
    placed = dict(zip(cutting, found, strict=True))
    return tuple(placed.get(k) for k in range(len(counts)))


def _strides(size: int, at: Regions, counts: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of plain digits, one on each axis, that make these parts of equal size; None if there are none."""
    each, rest = divmod(size, len(at))
    inner = [math.prod(counts[k + 1 :]) for k in range(len(counts))]
    strides = [at[step][0][0] - at[0][0][0] for step in inner]
    devices = itertools.product(*map(range, counts))
    starts = [sum(c * stride for c, stride in zip(d, strides, strict=True)) for d in devices]
    fits = (
        not rest
        and [*at] == [((start, start + each),) for start in starts]
        and sorted(starts) == [*range(0, size, each)]
    )
    return tuple(strides) if fits else None


def nests(digits: tuple[Digit, ...], size: int) -> bool:
    """Whether a part can have values of all these digits of one dimension: each lies wholly above or below every other.

    >>> nests((Digit(2, 8), Digit(4, 2)), 16), nests((Digit(2, 8), Digit(4, 4)), 16)
    (True, False)
    """
    if any(d.at is not None for d in digits):
        return len(digits) == 1
    limit = size
    for d in sorted(digits, key=lambda d: -d.stride):
        if limit % d.period:
            return False
        limit = d.stride
    return True


def near_equal(size: int, parts: int, unit: int = 1) -> Regions:
    """Runs of a dimension whose sizes are multiples of a unit, and differ by one unit at most; the first are larger.

    >>> near_equal(10, 4), near_equal(12, 2, unit=4)
    ((((0, 3),), ((3, 6),), ((6, 8),), ((8, 10),)), (((0, 8),), ((8, 12),)))
    """
    each, more = divmod(size // unit, parts)
    return parts_of([(each + (k < more)) * unit for k in range(parts)])


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


def within(runs: Runs, own: Runs) -> Runs:
    """Positions among those of some runs, as positions of the whole.

    >>> within(((0, 2), (6, 8)), ((1, 3),))
    ((1, 2), (6, 7))
    """
    found: list[Run] = []
    seen = 0
    for start, end in runs:
        found += [
            (start + max(a - seen, 0), start + min(b - seen, end - start))
            for a, b in own
            if max(a, seen) < min(b, seen + end - start)
        ]
        seen += end - start
    return merged(found)


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
