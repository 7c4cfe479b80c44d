"""Local values: tensors on a device, each a region of a logical value of the graph, perhaps with pending sums.

The type of a local value says, for each coordinate, how the tensor relates to the value on a single device:

- *along a mesh axis* the layout's placement: the same everywhere, one addend of a sum, or one digit of the position;
- *along an index in time*: a digit (`time`), an addend (`owed`), or nothing if every part has the same.

Digits are those of the whole logical value, even in a task that sees only a part of it.
"""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

from ssdsl.ir.layout import Layout, Shape, Shard
from ssdsl.record import Record


class Axis(Record):
    """A coordinate of the devices: an axis of the mesh, or several that count as one: `name` and behind it the `inner`
    ones, in the mesh's order, the last innermost. With node = 2 and gpu = 4, device 3 of node 1 has the number 7."""

    name: str
    inner: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The axes of the mesh."""
        return (self.name, *self.inner)


class Time(Record):
    """A coordinate of the tasks: an index whose parts run one after another."""

    name: str


Coordinate = Axis | Time


def names_of(coordinate: Coordinate) -> tuple[str, ...]:
    """The axes of the mesh of a coordinate in space, or the name of an index in time."""
    return coordinate.names if isinstance(coordinate, Axis) else (coordinate.name,)


class TimeIndex(Record):
    """An index in time with the number of its parts; `sizes` if these are unequal."""

    name: str
    parts: int
    sizes: tuple[int, ...] | None = None


class Name(NamedTuple):
    """A local value of a function: a version of a value of the graph. Version 0 is the operator's own result."""

    value: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.value}@{self.version}" if self.version else self.value


class Type(Record):
    """A region of a logical value, and its pending sums: along axes (PARTIAL in `layout`) and in time (`owed`)."""

    layout: Layout
    time: tuple[tuple[str, Shard], ...] = ()
    owed: tuple[str, ...] = ()

    @property
    def digits(self) -> tuple[Shard, ...]:
        """The digits that a tensor has one value of, along axes and in time."""
        return (*self.layout.shards(), *(digit for _, digit in self.time))


def digits_of(type_: Type, axes: tuple[tuple[str, int], ...]) -> tuple[tuple[Coordinate, Shard], ...]:
    """The digits of a type, each with what fixes it: an axis, axes together, or an index in time; `axes` are the
    submesh's."""
    names = [name for name, _ in axes]
    found = ((shard, type_.layout.axes_of(shard)) for shard in type_.layout.shards())
    on_axes = ((Axis(names[first], tuple(names[k] for k in inner)), shard) for shard, (first, *inner) in found)
    return (*on_axes, *((Time(name), shard) for name, shard in type_.time))


class Size(Record):
    """The local size of an axis: `known`, times the size of the part along each coordinate in `uneven`, which has the
    sizes of all parts.

    >>> Size(8).mean, str(Size(8)), str(Size(4, ((Time("m"), (3, 5)),)))
    (8, '8', '4*n_m')
    """

    known: int
    uneven: tuple[tuple[Coordinate, tuple[int, ...]], ...] = ()

    @property
    def mean(self) -> int:
        """The mean size over the parts, rounded up."""
        return self.known * math.prod([-(-sum(sizes) // len(sizes)) for _, sizes in self.uneven])

    def at(self, part: Mapping[Coordinate, int]) -> "Size":
        """The size for a part along some of the coordinates."""
        known = self.known * math.prod(sizes[part[c]] for c, sizes in self.uneven if c in part)
        return Size(known, tuple(varying for varying in self.uneven if varying[0] not in part))

    def __str__(self) -> str:
        words = [f"n_{'_'.join(names_of(coordinate))}" for coordinate, _ in self.uneven]
        return "*".join([str(self.known), *words] if self.known != 1 or not words else words)


def local_sizes(shape: Shape, type_: Type, axes: tuple[tuple[str, int], ...]) -> tuple[Size, ...]:
    """The local size of each axis of a tensor of `shape` on a submesh with these axes.

    >>> from ssdsl.plan.regions import Digit
    >>> shape = Shape(((16,), (3, 4, 8)))                       # [batch, qkv · heads · head_dim]
    >>> by_heads = Type(Layout((Shard(2, Digit(2, 2)),)), (("m", Shard(0, Digit(4, 4))),))
    >>> [str(size) for size in local_sizes(shape, by_heads, (("tp", 2),))]
    ['4', '48']
    >>> unequal = Type(by_heads.layout, (("m", Shard(0, Digit(2, at=(((0, 10),), ((10, 16),))))),))
    >>> [str(size) for size in local_sizes(shape, unequal, (("tp", 2),))]
    ['n_m', '48']
    """
    known, varying = list(shape.factors), dict[int, list[tuple[Coordinate, tuple[int, ...]]]]()
    for coordinate, shard in digits_of(type_, axes):
        if (sizes := shard.digit.sizes) is None:
            known[shard.factor] //= shard.digit.parts
        elif not shard.digit.is_unequal:
            known[shard.factor] = sizes[0]
        else:
            known[shard.factor] = 1
            varying.setdefault(shard.factor, []).append((coordinate, sizes))
    ends = itertools.accumulate(map(len, shape.axes))
    factors = [range(end - len(axis), end) for axis, end in zip(shape.axes, ends, strict=True)]
    return tuple(
        Size(math.prod(known[f] for f in own), tuple(v for f in own for v in varying.get(f, ()))) for own in factors
    )


class Var(Record):
    """A local value: its type, its gradient's type (None: it has no gradient), its local sizes and its dtype."""

    name: Name
    type: Type
    gradient: Type | None
    shape: tuple[Size, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """The elements of the local tensor; the mean if parts are unequal."""
        return math.prod([s.mean for s in self.shape])
