"""Layouts: how a tensor lies on the devices of a submesh, in PyTorch's words: Replicate, Partial, Shard.

A tensor's axis is a sequence of *factors* (`[qkv · heads · head_dim]`). A `Shard` fixes one digit of the position in
one factor. A factor of size 16 split by dp = 2 and then m = 4 is written `dp · m · 2`: dp is the digit of stride 8 with
2 parts, m the digit of stride 2 with 4 parts.

    >>> [(8 * dp + 2 * m, 2) for dp in range(2) for m in range(4)][:3]    # (start, length) of each part
    [(0, 2), (2, 2), (4, 2)]

So one class describes every nesting of splits, in space and in time. Parts of unequal sizes, and parts that overlap
(the windows of a convolution), are regions of the whole factor, one for each part.
"""

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache

from ssdsl.plan.plan import Mesh
from ssdsl.plan.regions import Regions, lengths_of, parts_of
from ssdsl.record import Record, replace


class Whole(Enum):
    """The placement of a tensor along an axis that does not shard it: the same everywhere, or one addend of a sum."""

    REPLICATE = "R"
    PARTIAL = "P"


REPLICATE, PARTIAL = Whole.REPLICATE, Whole.PARTIAL


class Shard(Record):
    """Part of the position in a factor: `position // stride % parts`. `factor` counts through the tensor's axes.

    With `at` the parts are these regions of the whole factor, and `stride` is 1. A layout may have such a digit on
    several axes: their numbers together, the last axis innermost, are the part's.

    >>> shard = Shard(factor=0, stride=2, parts=4)
    >>> [position // shard.stride % shard.parts for position in range(16)]
    [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]
    """

    factor: int
    stride: int
    parts: int
    at: Regions | None = None

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The sizes of parts that are regions."""
        return None if self.at is None else lengths_of(self.at)


Placement = Whole | Shard


def regions(factor: int, size: int, at: Regions) -> Placement:
    """The placement of parts that are these regions of a factor: a plain digit if that is the same, Replicate if each
    part is the whole factor.

    >>> regions(0, 12, (((0, 6),), ((6, 12),)))
    Shard(factor=0, stride=6, parts=2, at=None)
    >>> regions(0, 12, (((0, 7),), ((5, 12),)))
    Shard(factor=0, stride=1, parts=2, at=(((0, 7),), ((5, 12),)))
    """
    if all(runs == ((0, size),) for runs in at):
        return REPLICATE
    each, rest = divmod(size, len(at))
    if not rest and at == parts_of((each,) * len(at)):
        return Shard(factor, each, len(at))
    return Shard(factor, 1, len(at), at)


def regions_over(factor: int, size: int, at: Regions, counts: tuple[int, ...]) -> tuple[Placement, ...]:
    """The placements, on axes with `counts` devices, of parts that are these regions, one for each of their devices
    together: a plain digit on each axis if that is the same, and Replicate along those on which the regions do not
    depend.

    >>> regions_over(0, 8, (((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)), (2, 2))
    (Shard(factor=0, stride=4, parts=2, at=None), Shard(factor=0, stride=2, parts=2, at=None))
    >>> halos = (((0, 3),), ((1, 5),), ((3, 7),), ((5, 8),))
    >>> regions_over(0, 8, halos, (2, 2)) == (Shard(0, 1, 4, halos),) * 2
    True
    """
    devices = [*itertools.product(*map(range, counts))]
    of = dict(zip(devices, at, strict=True))
    cutting = [k for k in range(len(counts)) if any(of[d] != of[(*d[:k], 0, *d[k + 1 :])] for d in devices)]
    left = tuple(of[d] for d in devices if not any(c for k, c in enumerate(d) if k not in cutting))
    if len(cutting) < 2:
        found = [regions(factor, size, left) for _ in cutting]
    elif (strides := _strides(size, left, tuple(counts[k] for k in cutting))) is not None:
        found = [Shard(factor, stride, counts[k]) for k, stride in zip(cutting, strides, strict=True)]
    else:
        found = [Shard(factor, 1, len(left), left)] * len(cutting)
    placed = dict(zip(cutting, found, strict=True))
    return tuple(placed.get(k, REPLICATE) for k in range(len(counts)))


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


def regions_of(place: Placement, size: int, parts: int) -> Regions | None:
    """The region of each of `parts` parts of a factor of this size. None if the regions depend on other digits too: the
    digit is not the outermost one.

    >>> regions_of(Shard(0, 6, 2), 12, 2)
    (((0, 6),), ((6, 12),))
    """
    if not isinstance(place, Shard):
        return (((0, size),),) * parts
    if place.at is not None:
        return place.at
    return parts_of((place.stride,) * parts) if place.stride * place.parts == size else None


class Layout(Record):
    """One placement for each axis of the submesh, in its order."""

    places: tuple[Placement, ...]

    def shards(self) -> tuple[Shard, ...]:
        """The digits that a device has one value of, in the order of the axes: regions of several axes once."""
        shards = [p for p in self.places if isinstance(p, Shard)]
        return tuple(p for n, p in enumerate(shards) if p.at is None or p not in shards[:n])

    def axes_of(self, shard: Shard) -> tuple[int, ...]:
        """The numbers of the axes that a digit is on."""
        return tuple(a for a, p in enumerate(self.places) if p == shard)

    def replacing(self, axis: int, place: Placement) -> "Layout":
        """The layout with another placement on axis number `axis`."""
        return Layout((*self.places[:axis], place, *self.places[axis + 1 :]))

    def replacing_all(self, axes: tuple[int, ...], places: tuple[Placement, ...]) -> "Layout":
        """The layout with other placements on the axes of these numbers."""
        new = dict(zip(axes, places, strict=True))
        return Layout(tuple(new.get(a, p) for a, p in enumerate(self.places)))

    @property
    def is_partial(self) -> bool:
        """Whether the tensor is an addend of a sum along some axis."""
        return PARTIAL in self.places

    def partial_axes(self, axes: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
        """The names of the axes along which the tensor is a partial sum; `axes` are the submesh's."""
        return tuple(a for (a, _), p in zip(axes, self.places, strict=True) if p is PARTIAL)

    def summed(self) -> "Layout":
        """The layout with partial sums completed."""
        return Layout(tuple(REPLICATE if p is PARTIAL else p for p in self.places))

    def travelling(self) -> "Layout":
        """The layout in which a value goes to other devices: partial sums completed, regions joined."""
        whole = (p is PARTIAL or (isinstance(p, Shard) and p.at is not None) for p in self.places)
        return Layout(tuple(REPLICATE if w else p for w, p in zip(whole, self.places, strict=True)))

    def stored(self, shape: "Shape") -> "Layout":
        """The layout in which a weight of `shape` lives: partial sums completed, parts that overlap joined, and regions
        of several axes together. Parts of unequal sizes are joined too if another digit lies inside them in the same
        axis of the tensor.

        >>> parts = Shard(0, 1, 2, (((0, 3),), ((3, 4),)))
        >>> [str(Layout((parts, Shard(other, 1, 2))).stored(Shape(((4, 2), (2,))))) for other in (1, 2)]
        ['[R S(1)]', '[S(0) S(2)]']
        """

        def lives(place: Placement) -> bool:
            if not isinstance(place, Shard) or place.at is None:
                return place is not PARTIAL
            is_alone = len(self.axes_of(place)) == 1 and all(is_apart(s, (place,), shape) for s in self.shards())
            return is_alone and place.at == parts_of(lengths_of(place.at))

        return Layout(tuple(p if lives(p) else REPLICATE for p in self.places))

    def refactored(self, before: "Shape", after: "Shape") -> "Layout | None":
        """The layout with the same parts for a tensor whose axes have other factors; None if these cannot express it.

        >>> heads = Layout((Shard(1, 2, 2),))                          # of [qkv 3 · heads 4]
        >>> heads.refactored(Shape(((3, 4),)), Shape(((12,),)))
        Layout(places=(Shard(factor=0, stride=2, parts=2, at=None),))
        >>> Layout((Shard(0, 6, 2),)).refactored(Shape(((12,),)), Shape(((3, 4),))) is None
        True
        """
        if before == after:
            return self
        places = tuple(_refactored(p, before, after) if isinstance(p, Shard) else p for p in self.places)
        return Layout(tuple(p for p in places if p is not None)) if None not in places else None

    def __str__(self) -> str:
        words = [p.value if isinstance(p, Whole) else f"S({p.factor})" for p in self.places]
        return "[" + " ".join(words) + "]"


class Submesh(Record, dict=True):
    """The devices of a mesh at the given coordinates on its `fixed` axes. `axes` are the free ones with more than one
    device."""

    mesh: Mesh
    fixed: tuple[tuple[str, int], ...] = ()

    @cached_property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The free axes with their sizes, without those of one device."""
        held = dict(self.fixed)
        return tuple((name, n) for name, n in self.mesh.axes if name not in held and n > 1)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(n for _, n in self.axes)

    @cached_property
    def strides(self) -> tuple[tuple[str, int, int], ...]:
        """The free axes with their sizes, and by how much the rank grows from a device to the next one along each."""
        return tuple((name, n, self._steps[name]) for name, n in self.axes)

    @cached_property
    def first(self) -> int:
        """The rank of the first device."""
        return self.mesh.first + sum(c * self._steps[name] for name, c in self.fixed)

    @cached_property
    def _steps(self) -> dict[str, int]:
        """The step in rank from a device to the next one along each axis of the mesh; the last axis is innermost."""
        axes = self.mesh.axes[::-1]
        steps = itertools.accumulate((n for _, n in axes), operator.mul, initial=1)
        return {name: step for (name, _), step in zip(axes, steps, strict=False)}

    def ranks(self) -> list[int]:
        """All ranks, row-major over the free axes."""
        ranks = [self.first]
        for _, n, stride in self.strides:
            ranks = [r + c * stride for r in ranks for c in range(n)]
        return ranks

    def rank(self, held: Mapping[str, int], others: Sequence[int]) -> int:
        """The rank at the coordinates `held` on some free axes, by name, and `others` on the other axes, in order."""
        left = iter(others)
        return self.first + sum((held[a] if a in held else next(left)) * stride for a, _, stride in self.strides)

    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """The groups of ranks that differ in these axes only."""
        names = [a for a, _ in self.axes]
        places = itertools.product(*(range(n) for _, n in self.axes))
        found: dict[tuple[int, ...], list[int]] = {}
        for at, rank in zip(places, self.ranks(), strict=True):
            found.setdefault(tuple(c for a, c in zip(names, at, strict=True) if a not in axes), []).append(rank)
        return [tuple(g) for g in found.values()]

    def __str__(self) -> str:
        inside = ", ".join(f"{a} = {c}" for a, c in self.fixed)
        return f"{self.mesh.name}[{inside}]" if inside else self.mesh.name


class Shape(Record):
    """A tensor's axes as sequences of factor sizes: of the whole tensor, or of one task's part."""

    axes: tuple[tuple[int, ...], ...]

    @property
    def factors(self) -> tuple[int, ...]:
        """The sizes of all factors, axis by axis."""
        return tuple(n for axis in self.axes for n in axis)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each axis, as in torch."""
        return tuple(math.prod(axis) for axis in self.axes)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.factors)

    def axis_of(self, factor: int) -> int:
        """The axis that a factor belongs to."""
        seen = 0
        for at, axis in enumerate(self.axes):
            seen += len(axis)
            if factor < seen:
                return at
        raise IndexError(factor)

    def local(self, digits: tuple[Shard, ...]) -> "Shape":
        """The shape of a part that has one value of each of these digits; the largest one if parts are unequal."""
        left = list(self.factors)
        for d in digits:
            left[d.factor] = max(d.lengths) if d.lengths is not None else left[d.factor] // d.parts
        it = iter(left)
        return Shape(tuple(tuple(next(it) for _ in axis) for axis in self.axes))


class Cut(Record):
    """The place of a digit in a local tensor: axis `dim`, viewed as (outer, count, rest), has it in the middle.

    `rest` is the size of the axis divided by outer * count. `runtime/layout/cut.py` cuts tensors by it. With `at` the
    parts are these regions of each of the `outer` blocks.
    """

    dim: int
    outer: int
    count: int
    at: Regions | None = None


def _refactored(shard: Shard, before: Shape, after: Shape) -> Shard | None:
    """The digit that makes the same parts where the axis has the factors that `after` gives it; None if there is none.
    Example: stride 2 in `heads` of [qkv 3 · heads 4] is stride 2 in the axis of 12."""
    axis = before.axis_of(shard.factor)
    old, new = before.axes[axis], after.axes[axis]
    first = sum(map(len, before.axes[:axis]))
    if old == new:
        return replace(shard, factor=shard.factor - first + sum(map(len, after.axes[:axis])))
    inner = math.prod(old[shard.factor - first + 1 :])
    for number, size in enumerate(new):
        inside = math.prod(new[number + 1 :])
        stride, rest = divmod(shard.stride * inner, inside)
        if shard.at is None and stride and not rest and size % (stride * shard.parts) == 0:
            return Shard(sum(map(len, after.axes[:axis])) + number, stride, shard.parts)
    return None


@lru_cache(maxsize=65536)
def cut(shape: Shape, digit: Shard, fixed: tuple[Shard, ...]) -> Cut:
    """The place of `digit` in the part of a tensor of `shape` that has one value of each of the `fixed` digits.

    >>> fused = Shape(((3, 4, 64),))            # GPT-2's c_attn: 768 = qkv 3 · heads 4 · head_dim 64
    >>> cut(fused, Shard(1, 2, 2), ())          # heads into 2 parts: a strided part of each of q, k, v
    Cut(dim=0, outer=3, count=2, at=None)
    >>> cut(Shape(((16,),)), Shard(0, 2, 4), (Shard(0, 8, 2),))    # m within the part of one dp
    Cut(dim=0, outer=1, count=4, at=None)
    """
    dim = shape.axis_of(digit.factor)
    first = sum(len(a) for a in shape.axes[:dim])
    local = shape.local(fixed).factors
    before = math.prod(local[first : digit.factor])
    if digit.at is not None:
        inner = math.prod(local[digit.factor + 1 : first + len(shape.axes[dim])])
        scaled = tuple(tuple((s * inner, e * inner) for s, e in runs) for runs in digit.at)
        return Cut(dim, before, digit.parts, scaled)
    # 16 = dp 2 · m 4 · 2: above m are 2 positions in the whole tensor, and 1 where dp is fixed
    above = shape.factors[digit.factor] // (digit.stride * digit.parts)
    for other in fixed:
        if other.factor == digit.factor and other.stride > digit.stride:
            above //= other.parts
    assert above, "digits that are carried at once nest"
    return Cut(dim, before * above, digit.parts)


def is_apart(digit: Shard, others: tuple[Shard, ...], shape: Shape) -> bool:
    """Whether a digit has the same place in all parts that have one value of each of the others: in its axis of the
    tensor nothing outside it is cut into unequal parts; and if it has regions itself, nothing inside it either.

    >>> rows, parts = Shape(((4, 2),)), Shard(0, 1, 2, (((0, 3),), ((3, 4),)))
    >>> is_apart(Shard(1, 1, 2), (parts,), rows), is_apart(parts, (Shard(1, 1, 2),), rows)
    (False, True)
    """
    axis = shape.axis_of(digit.factor)
    unequal = [s for s in others if len(set(s.lengths or ())) > 1 and shape.axis_of(s.factor) == axis]
    return all(digit.at is None if s.factor > digit.factor else s.factor == digit.factor for s in unequal)


def nests(digits: tuple[Shard, ...], size: int) -> bool:
    """Whether a part can have values of all these digits of one factor: each lies wholly above or below every other.

    >>> nests((Shard(0, 8, 2), Shard(0, 2, 4)), 16), nests((Shard(0, 8, 2), Shard(0, 4, 4)), 16)
    (True, False)
    """
    if any(d.at is not None for d in digits):
        return len(digits) == 1
    ordered = sorted(digits, key=lambda d: -d.stride)
    limit = size
    for d in ordered:
        if limit % (d.stride * d.parts):
            return False
        limit = d.stride
    return True
