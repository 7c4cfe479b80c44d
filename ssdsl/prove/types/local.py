"""Local tensors: the part of a logical value that a device has in a task, and its pending sums.

A position in a factor of a value is a mixed-radix number. A coordinate, of the mesh or of time, fixes one of its
digits; the digits that are left free are runs of positions, outermost first. A factor of 16 with `dp` (stride 8, 2
parts) and `m` (stride 2, 2 parts) fixed has two free runs: the digit of stride 4 and the lowest one.

>>> free_runs(16, 0, (LocalDigit(0, 8, 2), LocalDigit(0, 2, 2)))
(Run(factor=0, stride=4, count=2, most=None), Run(factor=0, stride=1, count=2, most=None))
"""

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache

from ssdsl.ir.layout import PARTIAL, Shard
from ssdsl.ir.layout import Cut as Place
from ssdsl.ir.value import Axis, Coordinate, Time, Type
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.record import Record

Axes = tuple[tuple[str, int], ...]  # of a submesh: names and numbers of devices
Factors = tuple[tuple[int, ...], ...]  # the shape of a whole value: the sizes of the factors of each axis
Runs = tuple[tuple[int, int], ...]  # (start, end) of positions
Regions = tuple[Runs, ...]  # the runs of each part


class LocalDigit(Record):
    """A digit of the position in a factor: position // stride % parts. With `at` the parts are these regions of the
    whole factor, which may be unequal, or overlap: there each part has the same of a value, and an addend of its
    gradient."""

    factor: int
    stride: int
    parts: int
    at: Regions | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of positions in each region; empty for a plain digit."""
        return tuple(sum(end - start for start, end in runs) for runs in self.at or ())

    def size_in(self, shape: Factors) -> int:
        """The size of its factor in a whole value."""
        return [n for axis in shape for n in axis][self.factor]


def in_parts(factor: int, size: int, at: Regions) -> LocalDigit | None:
    """The digit of parts that are these regions: a plain one if that is the same; None if each part is the whole
    factor.

    >>> in_parts(0, 4, (((0, 2),), ((2, 4),))), in_parts(0, 4, (((0, 4),), ((0, 4),)))
    (LocalDigit(factor=0, stride=2, parts=2, at=None), None)
    """
    if all(runs == ((0, size),) for runs in at):
        return None
    stride = size // len(at)
    if all(runs == ((k * stride, (k + 1) * stride),) for k, runs in enumerate(at)) and stride * len(at) == size:
        return LocalDigit(factor, stride, len(at))
    return LocalDigit(factor, 1, len(at), at)


def on_axes(factor: int, size: int, at: Regions, counts: tuple[int, ...]) -> tuple[LocalDigit | None, ...]:
    """The digit of each axis, for parts that are these regions: one region for each device, the last axis innermost;
    `counts` are the axes' numbers of devices. An axis on which the regions do not depend has none. The others have
    plain digits if these say the same, else they share one digit.

    >>> on_axes(0, 4, (((0, 1),), ((1, 2),), ((2, 3),), ((3, 4),)), (2, 2))
    (LocalDigit(factor=0, stride=2, parts=2, at=None), LocalDigit(factor=0, stride=1, parts=2, at=None))
    """
    devices = [*itertools.product(*map(range, counts))]
    of = dict(zip(devices, at, strict=True))
    cutting = [k for k in range(len(counts)) if any(runs != of[(*d[:k], 0, *d[k + 1 :])] for d, runs in of.items())]
    # the others have equal regions on all their devices, so their first device stands for all
    parts = {d: runs for d, runs in of.items() if all(axis in cutting or not c for axis, c in enumerate(d))}
    regions = tuple(parts.values())
    if len(cutting) < 2:
        digits = dict.fromkeys(cutting, in_parts(factor, size, regions))
    elif (strides := _strides(parts, size, counts, cutting)) is not None:
        digits = {axis: LocalDigit(factor, strides[axis], counts[axis]) for axis in cutting}
    else:
        digits = dict.fromkeys(cutting, LocalDigit(factor, 1, len(regions), regions))
    return tuple(digits.get(axis) for axis in range(len(counts)))


def _strides(
    parts: dict[tuple[int, ...], Runs], size: int, counts: tuple[int, ...], cutting: list[int]
) -> dict[int, int] | None:
    """The stride of each cutting axis, if a device's coordinate there is a plain digit of all its positions; else None.
    `parts` are regions by the coordinates of devices."""
    regions = tuple(parts.values())
    is_even = {(len(runs), len(positions(runs))) for runs in regions} == {(1, size // len(regions))}
    if not (is_even and are_all(regions, size)):
        return None
    owner = {p: d for d, runs in parts.items() for p in positions(runs)}
    found = {axis: next(p for p in range(size) if owner[p][axis]) for axis in cutting}  # where the digit becomes 1
    if 0 in found.values() or any(owner[p][k] != p // found[k] % counts[k] for p in range(size) for k in cutting):
        return None
    return found


def positions(runs: Runs) -> list[int]:
    """The positions of some runs, in their order."""
    return [p for start, end in runs for p in range(start, end)]


def end_to_end(runs: Iterable[tuple[int, int]]) -> Runs:
    """The same positions in their order, with runs that follow each other made one.

    >>> end_to_end(((0, 0), (0, 5), (5, 9), (12, 13)))
    ((0, 9), (12, 13))
    """
    found: list[tuple[int, int]] = []
    for start, end in runs:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif start != end:
            found.append((start, end))
    return tuple(found)


def are_all(at: Regions, size: int) -> bool:
    """Whether parts together have each of `size` positions exactly once.

    >>> are_all((((0, 2), (6, 8)), ((2, 6),)), 8), are_all((((0, 4),), ((3, 8),)), 8)
    (True, False)
    """
    runs = sorted(run for part in at for run in part)
    ends = [0, *(end for _, end in runs)]
    return ends[-1] == size and all(start == before < end for (start, end), before in zip(runs, ends, strict=False))


def covered(runs: Runs) -> frozenset[int]:
    """The positions of some runs, as a set."""
    return frozenset(positions(runs))


class Local(Record):
    """The type of a local tensor: its fixed digits, each with the coordinate that fixes it. Along the coordinates in
    `partial` it is one addend of a sum; along all others it is the same. A digit that several axes fix together stands
    at each of them."""

    digits: frozenset[tuple[Coordinate, LocalDigit]] = frozenset()
    partial: frozenset[Coordinate] = frozenset()

    def digit(self, coordinate: Coordinate) -> LocalDigit | None:
        """The digit that a coordinate fixes."""
        return next((d for c, d in self.digits if c == coordinate), None)

    def part(self, coordinate: Coordinate, rule: Rule) -> LocalDigit:
        """The digit that a coordinate fixes. Raises Wrong unless the tensor is one of several parts along it."""
        digit = self.digit(coordinate)
        if digit is None or coordinate in self.partial:
            raise Wrong(rule, f"parts along {coordinate.name}", self)
        return digit

    def along(self, digit: LocalDigit) -> frozenset[Coordinate]:
        """The coordinates that fix a digit."""
        return frozenset(c for c, d in self.digits if d == digit)

    def fixing(self, coordinate: Coordinate, digit: LocalDigit) -> "Local":
        """The tensor with one more digit, fixed by a coordinate."""
        return Local(self.digits | {(coordinate, digit)}, self.partial)

    def freeing(self, coordinate: Coordinate) -> "Local":
        """The tensor without the digit of a coordinate: joined along it."""
        return Local(frozenset(d for d in self.digits if d[0] != coordinate), self.partial)

    def owing(self, *coordinates: Coordinate) -> "Local":
        """The tensor as one addend of a sum along these coordinates too."""
        return Local(self.digits, self.partial | set(coordinates))

    def summed(self, *coordinates: Coordinate) -> "Local":
        """The tensor with the sums along these coordinates taken."""
        return Local(self.digits, self.partial - set(coordinates))

    def fixed(self) -> tuple[LocalDigit, ...]:
        """The digits without their coordinates."""
        return tuple(d for _, d in self.digits)

    def __str__(self) -> str:
        places = sorted((d.factor, -d.stride, c.name, d) for c, d in self.digits)
        at = ", ".join(f"{name}: factor {f}, {d.parts} parts of {d.at or d.stride}" for f, _, name, d in places)
        owed = ", ".join(sorted(f"{c.name}" for c in self.partial))
        return f"at ({at}) partial {{{owed}}}"


@lru_cache(maxsize=65536)
def of_type(type_: Type, axes: Axes) -> Local:
    """The Local of a written type. Raises Wrong if it does not have one placement for each axis, or has two digits for
    one coordinate."""
    if len(type_.layout.places) != len(axes):
        raise Wrong(Rule.ANNOTATED, f"one place for each of {len(axes)} axes", type_.layout)
    digits: list[tuple[Coordinate, LocalDigit]] = []
    partial: list[Coordinate] = []
    for (name, _), place in zip(axes, type_.layout.places, strict=True):
        if isinstance(place, Shard):
            digits.append((Axis(name), LocalDigit(place.factor, place.digit.stride, place.digit.parts, place.digit.at)))
        elif place is PARTIAL:
            partial.append(Axis(name))
    for name, shard in type_.time:
        digits.append((Time(name), LocalDigit(shard.factor, shard.digit.stride, shard.digit.parts, shard.digit.at)))
    partial += [Time(name) for name in type_.owed]
    if len({c for c, _ in digits}) != len(digits):
        raise Wrong(Rule.ANNOTATED, "one digit for each coordinate", digits)
    local = Local(frozenset(digits), frozenset(partial))
    fixed_by(local, axes)
    return local


def fixed_by(local: Local, axes: Axes) -> tuple[tuple[Coordinate, LocalDigit], ...]:
    """Each digit once, with the coordinate that fixes it. Axes that fix it together are one coordinate, in the mesh's
    order; raises Wrong unless such a digit has a region for each of their devices."""
    found: list[tuple[Coordinate, LocalDigit]] = []
    for digit in {d for _, d in local.digits}:
        fixing = local.along(digit)
        names = [name for name, _ in axes if Axis(name) in fixing]
        if len(fixing) > 1:
            counts = math.prod(n for name, n in axes if name in names)
            if len(names) != len(fixing) or digit.at is None or not len(digit.at) == digit.parts == counts:
                raise Wrong(Rule.ANNOTATED, f"regions of the {counts} devices along {', '.join(names)}", digit)
        found.append((Axis(names[0], tuple(names[1:])) if names else next(iter(fixing)), digit))
    return tuple(found)


# -- free digits -------------------------------------------------------------------------------------------------------


class Run(Record):
    """A free digit of a factor. `count` is None if it varies from part to part; `most` is then its maximum."""

    factor: int
    stride: int
    count: int | None
    most: int | None = None


def free_runs(size: int, factor: int, fixed: Iterable[LocalDigit]) -> tuple[Run, ...]:
    """The free digits of a factor, outermost first. Raises Wrong if the fixed ones do not nest.

    >>> free_runs(13, 0, (LocalDigit(0, 1, 3, (((0, 5),), ((5, 9),), ((9, 13),))),))
    (Run(factor=0, stride=1, count=None, most=5),)
    """
    here = sorted((d for d in fixed if d.factor == factor), key=lambda d: -d.stride)
    if any(d.at is not None for d in here):
        only = here[0]
        ends = [[0, *(p for run in runs for p in run), size] for runs in only.at or ()]
        if len(here) > 1 or len(ends) != only.parts or any(e != sorted(e) for e in ends):
            raise Wrong(Rule.NEST, f"regions of a factor of {size}", here)
        return (
            Run(factor, 1, only.counts[0]) if len(set(only.counts)) == 1 else Run(factor, 1, None, max(only.counts)),
        )
    runs: list[Run] = []
    limit = size
    for d in here:
        span = d.stride * d.parts
        if d.stride < 1 or d.parts < 1 or limit % span:
            raise Wrong(Rule.NEST, f"digits that divide {limit}", f"{d.parts} parts of {d.stride}")
        if limit > span:
            runs.append(Run(factor, span, limit // span))
        limit = d.stride
    if limit != 1:  # an empty axis has size 0
        runs.append(Run(factor, 1, limit))
    return tuple(runs)


@lru_cache(maxsize=65536)
def free(shape: Factors, fixed: frozenset[LocalDigit]) -> tuple[tuple[Run, ...], ...]:
    """The free digits of a tensor, axis by axis. Raises Wrong if the fixed ones do not nest."""
    found = []
    factor = 0
    for axis in shape:
        runs: list[Run] = []
        for size in axis:
            runs += free_runs(size, factor, fixed)
            factor += 1
        found.append(tuple(runs))
    if any(d.factor >= factor or d.factor < 0 for d in fixed):
        raise Wrong(Rule.NEST, f"digits of {factor} factors", sorted(d.factor for d in fixed))
    return tuple(found)


def local_sizes(shape: Factors, local: Local) -> tuple[int | None, ...]:
    """The local size of each axis; None if it varies."""
    return tuple(_product(r.count for r in runs) for runs in free(shape, frozenset(local.fixed())))


def elements(shape: Factors, local: Local) -> int | None:
    """The number of elements of the local tensor; None if it varies."""
    return _product(local_sizes(shape, local))


def largest(shape: Factors, local: Local) -> int:
    """The number of elements of the local tensor; of the largest one if parts are unequal."""
    return math.prod(r.count or r.most or 0 for runs in free(shape, frozenset(local.fixed())) for r in runs)


def _product(counts: Iterable[int | None]) -> int | None:
    total = 1
    for n in counts:
        if n is None:
            return None
        total *= n
    return total


@lru_cache(maxsize=65536)
def designated(shape: Factors, fixed: frozenset[LocalDigit], place: Place) -> LocalDigit:
    """The digit that a cut takes out of (or puts into) a tensor in which the `fixed` ones are fixed already. Raises
    Wrong if the cut is no digit.

    >>> fused = ((3, 4, 64),)                                    # GPT-2's c_attn: qkv 3 . heads 4 . head_dim 64
    >>> designated(fused, frozenset(), Place(0, 3, 2))
    LocalDigit(factor=1, stride=2, parts=2, at=None)
    >>> designated(((16,),), frozenset({LocalDigit(0, 8, 2)}), Place(0, 1, 4))      # m within the part of one dp
    LocalDigit(factor=0, stride=2, parts=4, at=None)
    """
    axes = free(shape, fixed)
    if not 0 <= place.dim < len(axes) or place.outer < 1 or place.count < 1:
        raise Wrong(Rule.CUT, f"one of {len(axes)} axes", place)
    outer = place.outer  # how many blocks are still in front of the digit: free runs that are left out, outermost first
    for number, run in enumerate(axes[place.dim]):
        if run.count is None:
            break  # inside unequal parts no digit has a fixed place
        if outer % run.count == 0:
            outer //= run.count
            continue
        if run.count % outer:
            break
        left = run.count // outer  # positions of this run in one block
        if place.at is not None:
            inner = _product(r.count for r in axes[place.dim][number + 1 :])  # elements at each position of the factor
            size = [n for axis in shape for n in axis][run.factor]
            if inner is None or outer != 1 or (run.stride, left) != (1, size) or len(place.at) != place.count:
                break
            if any(p % inner for runs in place.at for ends in runs for p in ends):
                break
            at = tuple(tuple((start // inner, end // inner) for start, end in runs) for runs in place.at)
            return LocalDigit(run.factor, 1, place.count, at)
        if left % place.count:
            break
        return LocalDigit(run.factor, run.stride * (left // place.count), place.count)
    raise Wrong(Rule.CUT, "a digit of the local tensor", place)
