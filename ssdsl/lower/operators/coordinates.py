"""Turns indices of the plan into splits of an operator: each with a coordinate, in space or time, and a digit."""

import itertools
import math
from collections.abc import Sequence

from ssdsl.ir.function import Split
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.model.dims.window import Band
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Index
from ssdsl.plan.regions import Digit, Regions, Runs, near_equal, within


def coordinate_of(index: Index, submesh: Submesh) -> Coordinate:
    """The coordinate of an index: an axis, if the mesh has one of its name (parts lie on devices), or a time."""
    axes = {name for name, _ in submesh.axes}
    return Axis(index.name, index.inner) if axes.issuperset((index.name, *index.inner)) else Time(index.name)


def operator_splits(operator: Operator, indices: tuple[Index, ...], submesh: Submesh) -> tuple[Split, ...]:
    """The splits of an operator. Several indices on one dimension cut it one inside the other, the first outermost.

    For 16 rows and `dp = 2, m = 4` the digits are `row // 8 % 2` and `row // 2 % 4`. If the parts of several axes are
    regions, they are one split of all these axes together; so are those of one index over several axes. Keys have the
    digit of their queries along an index that cuts both, and inside of it those of indices that cut keys alone: queries
    `into a, b` and keys `into b, c`, of 2 parts each, are cut by `row // 8 % 2, row // 4 % 2` and by `row // 4 % 2,
    row // 2 % 2`.
    """
    left = {d: dim.size for d, dim in enumerate(operator.dims)}
    splits = []
    for index in sorted(indices, key=lambda i: _is_within(i, indices)):
        together = [i for i in indices if i.dim == index.dim]
        if _are_joined(operator, together, indices, submesh):
            splits += [_joined(operator, together, submesh)] if index is together[0] else []
            continue
        digit = index.digit
        left[index.dim] //= digit.parts * index.outside  # `outside`: parts of outer indices that this operator lacks
        if digit.at is None:
            digit = digit.scaled(left[index.dim])
            if index.inner:  # one digit on several axes has regions
                digit = Digit(digit.parts, at=digit.regions(digit.period))
        if index.also is not None and operator.dims[index.also].beside == index.dim:
            left[index.also] = digit.stride  # keys are cut further inside the digits of their queries
        splits.append(Split(coordinate_of(index, submesh), index.dim, digit, index.also))
    return tuple(splits)


def _is_within(index: Index, indices: Sequence[Index]) -> bool:
    """Whether an index cuts keys alone that others cut together with the queries: it cuts inside of these."""
    return index.also is None and any(i.also == index.dim for i in indices)


def _are_joined(operator: Operator, indices: Sequence[Index], every: Sequence[Index], submesh: Submesh) -> bool:
    """Whether the indices of one dimension, of `every` index of an operator, are one coordinate: all are axes of the
    mesh, and their parts need regions, because they read windows, differ in size or have several chunks."""
    if len(indices) < 2 or not all(isinstance(coordinate_of(i, submesh), Axis) for i in indices):
        return False
    if any(i.inner or i.outside > 1 for i in indices) or len({i.also for i in indices}) > 1:
        return False
    if are_chunks_cut(indices):
        return True
    if not all(i.digit.are_single for i in indices):
        return False
    dim = indices[0].dim
    read = (d for n, d in enumerate(operator.dims) if not any(n in i.dims for i in every))  # not keys that are cut
    windows = [d.window.shape for d in read if d.window is not None and d.window.of == dim]
    divides = operator.dims[dim].size % math.prod(i.digit.parts for i in indices) == 0
    is_even = divides and all(i.digit.at is None for i in indices)
    return not is_even or not all(isinstance(window, Band) and window.is_prefix for window in windows)


def are_chunks_cut(indices: Sequence[Index]) -> bool:
    """Whether the indices of one dimension cut the chunks of the outermost one's parts into equal parts."""
    first, *others = indices
    return not first.digit.are_single and not first.digit.is_unequal and all(i.digit.at is None for i in others)


def _joined(operator: Operator, indices: Sequence[Index], submesh: Submesh) -> Split:
    """One split for all indices of one dimension. Its parts are in the order of the devices along their axes, which may
    be another order than that of the cuts."""
    size, dim = operator.dims[indices[0].dim].size, indices[0].dim
    counts = {i.name: i.digit.parts for i in indices}
    names = [name for name, _ in submesh.axes if name in counts]
    # the runs of each part by its numbers in the cuts; and for each device, in the mesh's order, its numbers
    parts = dict(zip(itertools.product(*(range(i.digit.parts) for i in indices)), nested(size, indices), strict=True))
    devices = (dict(zip(names, at, strict=True)) for at in itertools.product(*(range(counts[n]) for n in names)))
    at: Regions = tuple(parts[tuple(device[i.name] for i in indices)] for device in devices)
    return Split(Axis(names[0], tuple(names[1:])), dim, Digit(len(at), at=at), indices[0].also)


def nested(size: int, indices: Sequence[Index]) -> list[Runs]:
    """The parts of a dimension that indices cut one inside the other: what a part has is cut as if it were one run. If
    its size is no multiple of the number of its parts, the first ones are larger by one.

    >>> from ssdsl.text.source import Source, Span
    >>> span = Span(Source("plan.ssp", ""), 0, 0)
    >>> nested(13, [Index("node", 0, Digit(2), span), Index("gpu", 0, Digit(2), span)])
    [((0, 4),), ((4, 7),), ((7, 10),), ((10, 13),)]
    >>> ends = Digit(2, at=(((0, 2), (6, 8)), ((2, 6),)))
    >>> nested(8, [Index("cp", 0, ends, span), Index("tp", 0, Digit(2), span)])
    [((0, 2),), ((6, 8),), ((2, 4),), ((4, 6),)]
    """
    parts: list[Runs] = [((0, size),)]
    for index in indices:
        parts = [within(runs, own) for runs in parts for own in _cut(index, sum(end - start for start, end in runs))]
    return parts


def _cut(index: Index, size: int) -> Regions:
    """The parts of a run of this size. An index with regions has them for this size already."""
    return index.digit.at or near_equal(size, index.digit.parts)
