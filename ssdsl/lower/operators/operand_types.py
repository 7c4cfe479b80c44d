"""The layouts of an operator's tensors: the table in docs/design.md.

Where the operator is split by a dimension along a coordinate, a tensor has along that coordinate:

| | if it has the dimension | if not |
|---|---|---|
| output | Shard | Partial |
| gradient of output, needed | Shard | Replicate |
| input, needed | Shard | Replicate |
| gradient of input, produced | Shard | Partial |

An input without the dimension may have one that is windowed on it (`Dim.window`): a part then needs the region that its
results read. If a kernel combines the parts along the dimension, the output is whole. An operator that works on partial
sums reads one addend of each operand that is carried, and leaves one addend.
"""

import math
from collections.abc import Iterable, Iterator

from ssdsl.ir.function import Carried, OpSplit, Split
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, placement, regions_of
from ssdsl.ir.value import Axis, Time, Type, names_of
from ssdsl.model.dims.window import in_time, needed
from ssdsl.model.graph import Operand, Operator
from ssdsl.plan.regions import Regions, digit_of, digits_over, lengths_of
from ssdsl.record import replace

Axes = tuple[tuple[str, int], ...]


def operand_types(
    operator: Operator, splits: tuple[OpSplit, ...], operand: Operand, axes: Axes, *, is_output: bool
) -> tuple[Type, Type]:
    """The type of an operator's input or output, and the type of that tensor's gradient.

    A linear y = x @ w of x [batch 8, in 4] and w [in 4, out 6], its summed dimension `in` split over tp:

    >>> from ssdsl.model.graph import Dim, Stage
    >>> from ssdsl.model.ops.rows import ROWS
    >>> from ssdsl.plan.regions import Digit
    >>> x, w, y = (Operand(n, a) for n, a in (("x", ((0,), (1,))), ("w", ((1,), (2,))), ("y", ((0,), (2,)))))
    >>> dims = (Dim("batch", 8, 0), Dim("in", 4, 1), Dim("out", 6, 2))
    >>> mm = Operator("mm", "mm", "aten::mm", "", "", Stage.COMPUTE, (), (), (x, w), (y,), dims, ROWS["aten::mm"])
    >>> splits, axes = (Split(Axis("tp"), 1, Digit(2, 2)),), (("tp", 2),)
    >>> [str(t.layout) for t in operand_types(mm, splits, x, axes, is_output=False)]    # columns of x; rows of w alike
    ['[S(1)]', '[S(1)]']
    >>> [str(t.layout) for t in operand_types(mm, splits, y, axes, is_output=True)]     # an addend; its gradient whole
    ['[P]', '[R]']

    By `batch` instead, w is needed whole, and its gradient is an addend:

    >>> splits = (Split(Axis("dp"), 0, Digit(2, 4)),)
    >>> [str(t.layout) for t in operand_types(mm, splits, w, (("dp", 2),), is_output=False)]
    ['[R]', '[P]']
    """
    here: dict[str, Placement] = {}
    gradient: dict[str, Placement] = {}
    for split in splits:
        value_partial, gradient_partial = _partial(operator, split, operand, is_output=is_output)
        for name, place in places_in(operator, split, splits, operand, axes):
            here[name] = place or (PARTIAL if value_partial else REPLICATE)
            gradient[name] = place or (PARTIAL if gradient_partial else REPLICATE)
    time = [s.coordinate.name for s in splits if isinstance(s.coordinate, Time)]
    return _type(here, axes, time), _type(gradient, axes, time)


def _type(places: dict[str, Placement], axes: Axes, time: list[str]) -> Type:
    """The type of a tensor that has these placements along axes and indices in time."""
    layout = Layout(tuple(places.get(a, REPLICATE) for a, _ in axes))
    digits = tuple((t, place) for t in time if isinstance(place := places[t], Shard))
    return Type(layout, digits, tuple(t for t in time if places[t] is PARTIAL))


def _partial(operator: Operator, split: OpSplit, operand: Operand, *, is_output: bool) -> tuple[bool, bool]:
    """Whether a tensor without the split dimension is a partial sum along the split, and whether its gradient is."""
    match split:
        case Carried():
            is_addend = is_output or operand.value in split.operands
            return is_addend, not is_addend
        case Split():
            if is_output:
                return operator.summed(split.dim), False
            # only the first device adds such an operand (a bias), but each device computes its whole gradient; in time
            # only the first part computes it, and the others have zeros, so that it is a sum
            is_whole = operand.once and operator.summed(split.dim) and isinstance(split.coordinate, Axis)
            return False, not is_whole


def places_in(
    operator: Operator, split: OpSplit, splits: tuple[OpSplit, ...], operand: Operand, axes: Axes
) -> Iterator[tuple[str, Shard | None]]:
    """Yields each axis of a split, or its index in time, with the digit of an operand along it, if it has one: several
    axes may have one digit together, or each its own."""
    names, found = names_of(split.coordinate), tuple[Placement | None, ...]()
    place = place_in(operator, split, splits, operand)
    if len(names) > 1 and isinstance(place, Shard):
        counts, size = dict(axes), operand_shape(operator, operand).factors[place.factor]
        at = regions_of(place, size, place.digit.parts)
        assert at is not None
        digits = digits_over(at, size, tuple(counts[n] for n in names))
        found = tuple(placement(place.factor, digit) for digit in digits)
    for name, own in zip(names, found or (place,) * len(names), strict=True):
        yield name, own if isinstance(own, Shard) else None


def place_in(operator: Operator, split: OpSplit, splits: tuple[OpSplit, ...], operand: Operand) -> Placement | None:
    """The placement of an operand along one of the operator's splits: a digit of its dimension, or the region that the
    part's results need.

    Replicate if that region is everything, None if the operand does not have the dimension. In GPT-2's fused weight
    [hidden 128, qkv 3 · heads 4 · head_dim 32], heads are factor 2:

    >>> from ssdsl.model.graph import Dim, Stage
    >>> from ssdsl.model.ops.rows import ROWS
    >>> from ssdsl.plan.regions import Digit
    >>> weight, dims = Operand("w", ((0,), (1, 2, 3))), tuple(Dim("", n, k) for k, n in enumerate((128, 3, 4, 32)))
    >>> row = ROWS["aten::mm"]
    >>> linear = Operator("mm", "mm", "aten::mm", "", "", Stage.COMPUTE, (), (), (weight,), (), dims, row)
    >>> split = Split(Axis("tp"), 2, Digit(2, 2))
    >>> place_in(linear, split, (split,), weight)
    Shard(factor=2, digit=Digit(parts=2, stride=2, at=None))
    """
    if isinstance(split, Carried):
        return None
    dims = dims_of(operand)
    if (dim := next((d for d in split.dims if d in dims), None)) is not None:
        factor, size = dims.index(dim), operator.dims[dim].size
        digit = split.in_dim([d.size for d in operator.dims], dim)
        return Shard(factor, digit) if digit.at is None else placement(factor, digit_of(digit.at, size))
    for dim, at in windows_on(operator, split, splits):
        if dim in dims:
            return placement(dims.index(dim), digit_of(at, operator.dims[dim].size))
    return None


def windows_on(operator: Operator, split: Split, splits: tuple[OpSplit, ...]) -> Iterator[tuple[int, Regions]]:
    """Yields the dimensions that are windowed on a split one, each with the region that every part needs; but for those
    that some of the operator's `splits` cut (keys): these lie as they are cut. A part inside the parts of another split
    needs all that the outer part has."""
    results = operator.dims[split.dim].size
    for number, dim in enumerate(operator.dims):
        if dim.window is not None and dim.window.of == split.dim and not is_cut(number, splits):
            at = (((0, results),),) * split.digit.parts if is_inner(operator, split) else split.digit.regions(results)
            window = in_time(dim.window.shape) if isinstance(split.coordinate, Time) else dim.window.shape
            yield number, tuple(needed(window, runs) for runs in at)


def is_cut(dim: int, splits: Iterable[OpSplit]) -> bool:
    """Whether some of an operator's splits cut a dimension."""
    return any(isinstance(split, Split) and dim in split.dims for split in splits)


def is_inner(operator: Operator, split: Split) -> bool:
    """Whether a split cuts the parts of another one."""
    return split.digit.at is None and split.digit.period < operator.dims[split.dim].size


def waits_for_no_later(made: Placement | None, read: Placement | None, shape: Shape) -> bool:
    """Whether each part reads only what was made for it, or for it and the parts before it."""
    if made == read:
        return True
    if not isinstance(made, Shard) or not isinstance(read, Shard) or made.factor != read.factor:
        return False
    before, after = (regions_of(s, shape.factors[s.factor], s.digit.parts) for s in (made, read))
    return before is not None and after == tuple(((0, runs[-1][1]),) for runs in before)


def dims_of(operand: Operand) -> list[int]:
    """The number of the operator's dimension for each factor of an operand, in the order of its axes."""
    return [dim for axis in operand.axes for dim in axis]


def operand_shape(operator: Operator, operand: Operand) -> Shape:
    """The shape of the whole tensor: the factors of each axis."""
    return Shape(tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes))


def inside(layout: Layout, removed: tuple[Shard, ...]) -> Layout:
    """The layout inside one task, whose digits in time (`removed`) are fixed: strides above a removed digit shrink.

    16 = dp 2 · m 4 · 2; of one m: dp 2 · 2.

    >>> from ssdsl.plan.regions import Digit
    >>> inside(Layout((Shard(0, Digit(2, 8)),)), (Shard(0, Digit(4, 2)),)).shards()
    (Shard(factor=0, digit=Digit(parts=2, stride=2, at=None)),)
    """
    if not removed:
        return layout
    return Layout(tuple(_shrink(p, removed) if isinstance(p, Shard) else p for p in layout.places))


def _shrink(shard: Shard, removed: tuple[Shard, ...]) -> Shard:
    digit, others = shard.digit, (r.digit for r in removed if r.factor == shard.factor)
    inner = math.prod(other.parts for other in others if other.stride < digit.stride)
    return shard if inner == 1 else Shard(shard.factor, replace(digit, stride=digit.stride // inner))


def local_dims(operator: Operator, splits: tuple[OpSplit, ...]) -> list[int]:
    """The local sizes of an operator's dimensions in a part: rounded up, and the mean of unequal parts."""
    sizes = [d.size for d in operator.dims]
    for split in (s for s in splits if isinstance(s, Split)):
        for number, at in windows_on(operator, split, splits) if not is_inner(operator, split) else ():
            sizes[number] = -(-sum(lengths_of(at)) // split.digit.parts)
        for dim in split.dims:
            sizes[dim] = -(-sizes[dim] // split.digit.parts)
    return sizes
