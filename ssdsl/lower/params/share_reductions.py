"""Chooses copies of weights that share the reduction of their gradient, so that slow links carry it once.

Weights may be whole along an axis, such as that of a spatial or tensor split that leaves their layers alone, while
their gradient is a sum over other axes. Then d devices have the same addend, and each would sum all of it. Instead each
sums one of d parts with the devices that have the same part, and the d devices gather the sum: slow links carry a d-th
of the bytes.

Source: the last two of the three steps of Cho et al. 2019, "BlueConnect: Decomposing All-Reduce for Deep Learning on
Heterogeneous Network Hierarchy"; the first, a reduce_scatter, is a slice where the addends are equal.
"""

import math
from collections.abc import Iterator

from ssdsl.ir.layout import Submesh
from ssdsl.lower.conversions.route import first_as_fast
from ssdsl.lower.stages import Planned


def shared_axes(
    lowering: Planned,
    submesh: Submesh,
    summed: tuple[str, ...],
    copies: tuple[str, ...],
    size_bytes: int,
    is_alone: bool,
) -> tuple[str, ...]:
    """The axes, among those of the `copies`, along which devices share a reduction over the axes `summed`: none if that
    saves no time, or if the links are unknown.

    Unless `is_alone`, these weights could be reduced, unshared, together with others that have other copies. They would
    then cost only the time of their bytes, so a shared reduction has to gain its latency as well.
    """
    if lowering.cluster is None or not lowering.cluster.routes or not summed:
        return ()
    latency_s = 0.0 if is_alone else _time(lowering, submesh, summed, (), 0)
    return first_as_fast(
        (_time(lowering, submesh, summed, way, size_bytes) - (0.0 if way else latency_s), way)
        for way in _choices(lowering, submesh, copies)
    )


def _choices(lowering: Planned, submesh: Submesh, copies: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields no axis, then the one with the fastest links, then the next one too, and so on."""
    links = {axis: link for (axis, _), link in zip(submesh.axes, lowering.links(submesh).along, strict=True)}
    chosen: set[str] = set()
    yield ()
    for axis in sorted(copies, key=lambda axis: -links[axis].bandwidth):
        chosen.add(axis)
        yield tuple(a for a, _ in submesh.axes if a in chosen)


def _time(
    lowering: Planned, submesh: Submesh, summed: tuple[str, ...], shares: tuple[str, ...], size_bytes: int
) -> float:
    """The seconds of an all_reduce of a part of so many bytes, and of the gather of the parts."""
    sizes = dict(submesh.axes)

    def seconds(kind: str, size: float, axes: tuple[str, ...]) -> float:
        return lowering.ring(submesh, axes).collective_time(kind, size, math.prod(sizes[a] for a in axes))

    reduced = seconds("all_reduce", size_bytes / math.prod(sizes[a] for a in shares), summed)
    return reduced + (seconds("all_gather", size_bytes, shares) if shares else 0.0)
