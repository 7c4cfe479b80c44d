"""Layouts: how a tensor lies on the devices of a submesh.

Along each axis of the submesh a tensor is replicated, a partial sum, or sharded: it carries one *digit* of the
position in one of its factors. A factor of size 16 split by dp = 2 and then m = 4 is written `dp · m · 2`: dp is the
digit of stride 8 and count 2, m the digit of stride 2 and count 4. Digits make every nesting of splits, in space and
in time, one notion.
"""

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ssdsl.plan.plan import Mesh


class Whole(Enum):
    """What a tensor can be along an axis other than sharded; the names are PyTorch's."""

    REPLICATE = "R"
    PARTIAL = "P"


REPLICATE, PARTIAL = Whole.REPLICATE, Whole.PARTIAL


@dataclass(frozen=True, slots=True)
class Digit:
    """Part of the position in a factor: `position // stride % count`. `factor` counts through the tensor's axes."""

    factor: int
    stride: int
    count: int


Place = Whole | Digit


@dataclass(frozen=True, slots=True)
class Layout:
    """One place per axis of the submesh, in its order."""

    places: tuple[Place, ...]

    def digits(self) -> tuple[Digit, ...]:
        return tuple(p for p in self.places if isinstance(p, Digit))

    def replacing(self, axis: int, place: Place) -> "Layout":
        return Layout((*self.places[:axis], place, *self.places[axis + 1 :]))

    @property
    def is_partial(self) -> bool:
        return PARTIAL in self.places

    def summed(self) -> "Layout":
        """The layout with partial sums completed."""
        return Layout(tuple(REPLICATE if p is PARTIAL else p for p in self.places))

    def __str__(self) -> str:
        words = [p.value if isinstance(p, Whole) else f"S({p.factor})" for p in self.places]
        return "[" + " ".join(words) + "]"


@dataclass(frozen=True, slots=True)
class Submesh:
    """The devices of a mesh whose `fixed` axes have the given coordinates. `axes` are the free ones of more than one
    device."""

    mesh: Mesh
    fixed: tuple[tuple[str, int], ...] = ()

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        held = dict(self.fixed)
        return tuple((name, n) for name, n in self.mesh.axes if name not in held and n > 1)

    @property
    def size(self) -> int:
        return math.prod(n for _, n in self.axes)

    def ranks(self) -> list[int]:
        """All ranks, row-major over the free axes."""
        held = dict(self.fixed)
        ranks = [self.mesh.first]
        for at, (name, n) in enumerate(self.mesh.axes):
            stride = math.prod(k for _, k in self.mesh.axes[at + 1 :])
            steps = [held[name]] if name in held else range(n)
            ranks = [r + c * stride for r in ranks for c in steps]
        return ranks

    def __str__(self) -> str:
        inside = ", ".join(f"{a} = {c}" for a, c in self.fixed)
        return f"{self.mesh.name}[{inside}]" if inside else self.mesh.name


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor's axes as sequences of factor sizes, whole or of one task's part."""

    axes: tuple[tuple[int, ...], ...]

    @property
    def factors(self) -> tuple[int, ...]:
        return tuple(n for axis in self.axes for n in axis)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(axis) for axis in self.axes)

    @property
    def numel(self) -> int:
        return math.prod(self.factors)

    def axis_of(self, factor: int) -> int:
        """The axis that a factor belongs to."""
        seen = 0
        for at, axis in enumerate(self.axes):
            seen += len(axis)
            if factor < seen:
                return at
        raise IndexError(factor)

    def local(self, digits: tuple[Digit, ...]) -> "Shape":
        """The shape of the part that carries one value of each of these digits."""
        left = list(self.factors)
        for d in digits:
            left[d.factor] //= d.count
        it = iter(left)
        return Shape(tuple(tuple(next(it) for _ in axis) for axis in self.axes))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a digit lies in a local tensor: axis `dim`, viewed as (outer, count, rest), has it in the middle."""

    dim: int
    outer: int
    count: int


@lru_cache(maxsize=65536)
def cut(shape: Shape, digit: Digit, fixed: tuple[Digit, ...]) -> Cut:
    """The place of `digit` in the part of a tensor of `shape` that carries one value of each of the `fixed` digits."""
    dim = shape.axis_of(digit.factor)
    first = sum(len(a) for a in shape.axes[:dim])
    local = shape.local(fixed).factors
    before = math.prod(local[first : digit.factor])
    above = shape.factors[digit.factor] // (digit.stride * digit.count)
    for other in fixed:
        if other.factor == digit.factor and other.stride > digit.stride:
            above //= other.count
    assert above, "digits that are carried at once nest"
    return Cut(dim, before * above, digit.count)


def nests(digits: tuple[Digit, ...], size: int) -> bool:
    """Whether the digits of one factor can be carried at once: each lies wholly above or below every other."""
    ordered = sorted(digits, key=lambda d: -d.stride)
    limit = size
    for d in ordered:
        if limit % (d.stride * d.count):
            return False
        limit = d.stride
    return True
