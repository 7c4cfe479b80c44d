"""Scatter/gather: a tensor that several devices hold whole travels in shares, where links between submeshes are slow.

Where each of t devices would send the same tensor to a device of its own over a slow link, each sends a t-th part of
it, and the receivers gather the parts over their fast links; gradients go back likewise. Megatron-LM's scatter/gather
(Narayanan et al. 2021, section 4.1), for any axis that both submeshes have.
"""

from collections.abc import Mapping

from ssdsl.ir.layout import REPLICATE, Layout, Shape, Shard, Submesh, is_apart
from ssdsl.lower.conversions.transfer import keep_boxes
from ssdsl.lower.lowering import Lowering

End = tuple[Submesh, Layout]
NO_SHARES: Mapping[str, Shard] = {}
Times = tuple[tuple[Shard, ...], frozenset[int]]  # the digits of a part in time, and the factors that vary with it


def shares_of(
    lowering: Lowering, source: End, target: End, shape: Shape, times: Times, itemsize: int
) -> dict[str, Shard]:
    """The axis along which devices send shares, with the digit that divides the tensor among them; empty where sending
    it whole takes no longer."""
    found: dict[str, Shard] = {}
    if lowering.cluster is None:
        return found
    for axis, parts in target[0].axes:
        share = _share(axis, parts, source, target, shape, times)
        if share is not None and _pays(lowering, axis, parts, source, target, shape, times, itemsize):
            found[axis] = share
            break  # a second share would have to divide the parts of the first one
    return found


def with_shares(layout: Layout, submesh: Submesh, shares: Mapping[str, Shard]) -> Layout:
    """The layout in which a tensor travels: that of the submesh with the shares as digits."""
    places = zip(submesh.axes, layout.places, strict=True)
    return Layout(tuple(shares.get(a, place) for (a, _), place in places))


def _share(axis: str, parts: int, source: End, target: End, shape: Shape, times: Times) -> Shard | None:
    """The share along an axis on which both ends hold the tensor whole: a digit of the first factor that can be cut
    once more, at the same place in all parts. None if there is none."""
    places = {a: (n, p) for (a, n), p in zip(source[0].axes, source[1].places, strict=True)}
    own = dict(zip((a for a, _ in target[0].axes), target[1].places, strict=True))[axis]
    if places.get(axis) != (parts, REPLICATE) or own is not REPLICATE or parts == 1:
        return None
    digits, uneven = times
    every = {*source[1].shards(), *target[1].shards(), *digits}
    for factor, size in enumerate(shape.factors):
        held = {s for s in every if s.factor == factor}
        left = min((s.stride for s in held), default=size)
        if factor in uneven or any(s.at is not None for s in held) or left % parts:
            continue
        share = Shard(factor, left // parts, parts)
        if is_apart(share, tuple(every - held), shape) and all(
            _keeps(end, axis, share, shape, times) for end in (source, target)
        ):
            return share
    return None


def _keeps(end: End, axis: str, share: Shard, shape: Shape, times: Times) -> bool:
    """Whether a device's share of a part in time is still one box."""
    layout = with_shares(end[1], end[0], {axis: share})
    return keep_boxes(layout, shape, *times) == layout


def _pays(
    lowering: Lowering,
    axis: str,
    parts: int,
    source: End,
    target: End,
    shape: Shape,
    times: Times,
    itemsize: int,
) -> bool:
    """Whether sending a share and gathering all takes less time than sending the whole; measured between the first
    devices of both ends."""
    assert lowering.cluster is not None
    sender, receiver = source[0].ranks()[0], target[0].ranks()[0]
    size = shape.local((*target[1].shards(), *times[0])).numel * itemsize
    busy = tuple(source[0].ranks())
    whole, share = (lowering.cluster.point_to_point_time(n, sender, receiver, busy) for n in (size, size / parts))
    number = [a for a, _ in target[0].axes].index(axis)
    gathered = lowering.links(target[0])[number].collective_time("all_gather", size, parts)
    return share + gathered < whole
