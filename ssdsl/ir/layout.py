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
from ssdsl.plan.regions import Digit, Regions
from ssdsl.record import Record, replace


class Whole(Enum):
    """The placement of a tensor along an axis that does not shard it: the same everywhere, or one addend of a sum."""

    REPLICATE = "R"
    PARTIAL = "P"


REPLICATE, PARTIAL = Whole.REPLICATE, Whole.PARTIAL


class Shard(Record):
    """Part of the position in a factor: its `digit` there. `factor` counts through the tensor's axes.

    A layout may have a digit with regions on several axes: their numbers together, the last axis innermost, are the
    part's.
    """

    factor: int
    digit: Digit


Placement = Whole | Shard


def placement(factor: int, digit: Digit | None) -> Placement:
    """The placement of parts that have this digit of a factor; Replicate without one."""
    return REPLICATE if digit is None else Shard(factor, digit)


def regions_of(place: Placement, size: int, parts: int) -> Regions | None:
    """The region of each of `parts` parts of a factor of this size. None if the regions depend on other digits too: the
    digit is not the outermost one.

    >>> regions_of(Shard(0, Digit(2, 6)), 12, 2)
    (((0, 6),), ((6, 12),))
    """
    if not isinstance(place, Shard):
        return (((0, size),),) * parts
    is_outermost = place.digit.at is not None or place.digit.period == size
    return place.digit.regions(size) if is_outermost else None


class Layout(Record):
    """One placement for each axis of the submesh, in its order."""

    places: tuple[Placement, ...]

    def shards(self) -> tuple[Shard, ...]:
        """The digits that a device has one value of, in the order of the axes: regions of several axes once."""
        shards = [p for p in self.places if isinstance(p, Shard)]
        return tuple(p for n, p in enumerate(shards) if p.digit.at is None or p not in shards[:n])

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
        whole = (p is PARTIAL or (isinstance(p, Shard) and p.digit.at is not None) for p in self.places)
        return Layout(tuple(REPLICATE if w else p for w, p in zip(whole, self.places, strict=True)))

    def stored(self, shape: "Shape") -> "Layout":
        """The layout in which a weight of `shape` lives: partial sums completed, parts that overlap joined, and regions
        of several axes together. Parts of unequal sizes are joined too if another digit lies inside them in the same
        axis of the tensor.

        >>> parts = Shard(0, Digit(2, at=(((0, 3),), ((3, 4),))))
        >>> [str(Layout((parts, Shard(other, Digit(2)))).stored(Shape(((4, 2), (2,))))) for other in (1, 2)]
        ['[R S(1)]', '[S(0) S(2)]']
        """

        def lives(place: Placement) -> bool:
            if not isinstance(place, Shard) or place.digit.at is None:
                return place is not PARTIAL
            is_alone = len(self.axes_of(place)) == 1 and all(is_apart(s, (place,), shape) for s in self.shards())
            return is_alone and place.digit.are_runs

        return Layout(tuple(p if lives(p) else REPLICATE for p in self.places))

    def refactored(self, before: "Shape", after: "Shape") -> "Layout | None":
        """The layout with the same parts for a tensor whose axes have other factors; None if these cannot express it.

        >>> heads = Layout((Shard(1, Digit(2, 2)),))                   # of [qkv 3 · heads 4]
        >>> heads.refactored(Shape(((3, 4),)), Shape(((12,),)))
        Layout(places=(Shard(factor=0, digit=Digit(parts=2, stride=2, at=None)),))
        >>> Layout((Shard(0, Digit(2, 6)),)).refactored(Shape(((12,),)), Shape(((3, 4),))) is None
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

    def local(self, shards: tuple[Shard, ...]) -> "Shape":
        """The shape of a part that has one value of each of these digits; the largest one if parts are unequal."""
        left = list(self.factors)
        for factor, digit in ((s.factor, s.digit) for s in shards):
            left[factor] = left[factor] // digit.parts if digit.sizes is None else max(digit.sizes)
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
        stride, rest = divmod(shard.digit.stride * inner, inside)
        digit = replace(shard.digit, stride=stride)
        if digit.at is None and stride and not rest and size % digit.period == 0:
            return Shard(sum(map(len, after.axes[:axis])) + number, digit)
    return None


@lru_cache(maxsize=65536)
def cut(shape: Shape, shard: Shard, fixed: tuple[Shard, ...]) -> Cut:
    """The place of a digit in the part of a tensor of `shape` that has one value of each of the `fixed` digits.

    >>> fused = Shape(((3, 4, 64),))            # GPT-2's c_attn: 768 = qkv 3 · heads 4 · head_dim 64
    >>> cut(fused, Shard(1, Digit(2, 2)), ())   # heads into 2 parts: a strided part of each of q, k, v
    Cut(dim=0, outer=3, count=2, at=None)
    >>> cut(Shape(((16,),)), Shard(0, Digit(4, 2)), (Shard(0, Digit(2, 8)),))    # m within the part of one dp
    Cut(dim=0, outer=1, count=4, at=None)
    """
    dim, digit = shape.axis_of(shard.factor), shard.digit
    first = sum(len(a) for a in shape.axes[:dim])
    local = shape.local(fixed).factors
    before = math.prod(local[first : shard.factor])
    if digit.at is not None:
        inner = math.prod(local[shard.factor + 1 : first + len(shape.axes[dim])])
        return Cut(dim, before, digit.parts, digit.scaled(inner).at)
    # 16 = dp 2 · m 4 · 2: above m are 2 positions in the whole tensor, and 1 where dp is fixed
    above = shape.factors[shard.factor] // digit.period
    for other in fixed:
        if other.factor == shard.factor and other.digit.stride > digit.stride:
            above //= other.digit.parts
    assert above, "digits that are carried at once nest"
    return Cut(dim, before * above, digit.parts)


def is_apart(shard: Shard, others: tuple[Shard, ...], shape: Shape) -> bool:
    """Whether a digit has the same place in all parts that have one value of each of the others: in its axis of the
    tensor nothing outside it is cut into unequal parts; and if it has regions itself, nothing inside it either.

    >>> rows, parts, columns = Shape(((4, 2),)), Shard(0, Digit(2, at=(((0, 3),), ((3, 4),)))), Shard(1, Digit(2))
    >>> is_apart(columns, (parts,), rows), is_apart(parts, (columns,), rows)
    (False, True)
    """
    axis = shape.axis_of(shard.factor)
    unequal = [s for s in others if s.digit.is_unequal and shape.axis_of(s.factor) == axis]
    return all(shard.digit.at is None if s.factor > shard.factor else s.factor == shard.factor for s in unequal)
