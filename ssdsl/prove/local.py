"""Local tensors: which part of a logical value a device has in a task, and which sums it still lacks.

A factor of a value is a mixed-radix number. A coordinate, of the mesh or of time, fixes one digit of it; what is left
free are runs of positions, outermost first. A factor of 16 with `dp` (stride 8, 2 parts) and `m` (stride 2, 2 parts)
fixed has two free runs: the digit of stride 4 and the lowest one.

>>> free_runs(16, 0, (Digit(0, 8, 2), Digit(0, 2, 2)))
(Run(factor=0, stride=4, count=2), Run(factor=0, stride=1, count=2))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ssdsl.ir.layout import PARTIAL, Shard
from ssdsl.ir.layout import Cut as Place
from ssdsl.ir.value import Axis, Coordinate, Time, TimeIndex, Type
from ssdsl.prove.failures import Rule, Wrong

Axes = tuple[tuple[str, int], ...]
Factors = tuple[tuple[int, ...], ...]  # of a whole value: axis by axis, the sizes of its factors


@dataclass(frozen=True, slots=True)
class Digit:
    """position // stride % parts of a factor; with `sizes` the parts are unequal and the digit is the whole factor."""

    factor: int
    stride: int
    parts: int
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """The region of a local tensor: the digits that are fixed, and by which coordinate. Along the coordinates in
    `partial` it is one addend of a sum; along all others it is the same."""

    digits: frozenset[tuple[Coordinate, Digit]] = frozenset()
    partial: frozenset[Coordinate] = frozenset()

    def digit(self, coordinate: Coordinate) -> Digit | None:
        """The digit that a coordinate fixes."""
        return next((d for c, d in self.digits if c == coordinate), None)

    def fixing(self, coordinate: Coordinate, digit: Digit) -> "Local":
        return Local(self.digits | {(coordinate, digit)}, self.partial)

    def freeing(self, coordinate: Coordinate) -> "Local":
        return Local(frozenset(d for d in self.digits if d[0] != coordinate), self.partial)

    def owing(self, *coordinates: Coordinate) -> "Local":
        return Local(self.digits, self.partial | set(coordinates))

    def summed(self, *coordinates: Coordinate) -> "Local":
        return Local(self.digits, self.partial - set(coordinates))

    def fixed(self) -> tuple[Digit, ...]:
        return tuple(d for _, d in self.digits)

    def __str__(self) -> str:
        places = sorted((d.factor, -d.stride, c.name, d) for c, d in self.digits)
        at = ", ".join(f"{name}: factor {f}, {d.parts} parts of {d.sizes or d.stride}" for f, _, name, d in places)
        owed = ", ".join(sorted(f"{c.name}" for c in self.partial))
        return f"at ({at}) partial {{{owed}}}"


@lru_cache(maxsize=65536)
def of_type(type_: Type, axes: Axes, time: tuple[TimeIndex, ...]) -> Local:
    """A written type as a local tensor's; raises Wrong where it speaks of coordinates that there are not."""
    if len(type_.layout.places) != len(axes):
        raise Wrong(Rule.ANNOTATED, f"one place for each of {len(axes)} axes", type_.layout)
    sizes = {t.name: t.sizes for t in time}
    digits: list[tuple[Coordinate, Digit]] = []
    partial: list[Coordinate] = []
    for (name, _), place in zip(axes, type_.layout.places, strict=True):
        if isinstance(place, Shard):
            digits.append((Axis(name), Digit(place.factor, place.stride, place.parts)))
        elif place is PARTIAL:
            partial.append(Axis(name))
    for name, shard in type_.time:
        digits.append((Time(name), Digit(shard.factor, shard.stride, shard.parts, sizes.get(name))))
    partial += [Time(name) for name in type_.owed]
    if len({c for c, _ in digits}) != len(digits):
        raise Wrong(Rule.ANNOTATED, "one digit for each coordinate", digits)
    return Local(frozenset(digits), frozenset(partial))


# -- what is free ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """A free digit of a factor; `count` is None where it varies from part to part."""

    factor: int
    stride: int
    count: int | None


def free_runs(size: int, factor: int, fixed: Iterable[Digit]) -> tuple[Run, ...]:
    """The free digits of a factor, outermost first; raises Wrong where the fixed ones do not nest.

    >>> free_runs(13, 0, (Digit(0, 4, 3, (5, 4, 4)),))
    (Run(factor=0, stride=1, count=None),)
    """
    here = sorted((d for d in fixed if d.factor == factor), key=lambda d: -d.stride)
    if any(d.sizes is not None for d in here):
        (only,) = here if len(here) == 1 else (here[0],)
        if len(here) > 1 or only.sizes is None or sum(only.sizes) != size or len(only.sizes) != only.parts:
            raise Wrong(Rule.NEST, f"unequal parts that are all of a factor of {size}", here)
        return (Run(factor, 1, None),)
    runs: list[Run] = []
    limit = size
    for d in here:
        span = d.stride * d.parts
        if limit % span or d.parts < 1:
            raise Wrong(Rule.NEST, f"digits that divide {limit}", f"{d.parts} parts of {d.stride}")
        if limit > span:
            runs.append(Run(factor, span, limit // span))
        limit = d.stride
    if limit != 1:  # an empty axis has size 0
        runs.append(Run(factor, 1, limit))
    return tuple(runs)


@lru_cache(maxsize=65536)
def free(shape: Factors, fixed: frozenset[Digit]) -> tuple[tuple[Run, ...], ...]:
    """The free digits of a tensor, axis by axis; raises Wrong where the fixed ones do not nest."""
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
    """The local size of each axis, None where it varies."""
    return tuple(_product(r.count for r in runs) for runs in free(shape, frozenset(local.fixed())))


def elements(shape: Factors, local: Local) -> int | None:
    """Elements of the local tensor, None where their number varies."""
    return _product(local_sizes(shape, local))


def _product(counts: Iterable[int | None]) -> int | None:
    total = 1
    for n in counts:
        if n is None:
            return None
        total *= n
    return total


@lru_cache(maxsize=65536)
def designated(shape: Factors, fixed: frozenset[Digit], place: Place, sizes: tuple[int, ...] | None = None) -> Digit:
    """The digit that a cut takes out of (or puts into) a tensor in which the `fixed` ones are fixed already; raises
    Wrong if it is none.

    >>> fused = ((3, 4, 64),)                                    # GPT-2's c_attn: qkv 3 . heads 4 . head_dim 64
    >>> designated(fused, frozenset(), Place(0, 3, 2))
    Digit(factor=1, stride=2, parts=2, sizes=None)
    >>> designated(((16,),), frozenset({Digit(0, 8, 2)}), Place(0, 1, 4))      # m within the part of one dp
    Digit(factor=0, stride=2, parts=4, sizes=None)
    """
    axes = free(shape, fixed)
    if not 0 <= place.dim < len(axes) or place.outer < 1 or place.count < 1:
        raise Wrong(Rule.CUT, f"one of {len(axes)} axes", place)
    outer = place.outer
    for run in axes[place.dim]:
        if run.count is None:
            break  # behind an axis of unequal parts there is no fixed place
        if outer % run.count == 0:
            outer //= run.count
            continue
        if run.count % outer:
            break
        left = run.count // outer
        if sizes is not None:
            if left == run.count and run.stride == 1 and left == sum(sizes) and place.count == len(sizes):
                return Digit(run.factor, left // place.count, place.count, sizes)
            break
        if left % place.count:
            break
        return Digit(run.factor, run.stride * (left // place.count), place.count)
    raise Wrong(Rule.CUT, "a digit of the local tensor", place)
