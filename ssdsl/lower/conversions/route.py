"""The way of a tensor to other devices: the layouts in which it leaves and arrives, so that slow links carry it once.

A tensor may travel in any layout. Where devices that are close to each other hold the same, or need the same, each of
them can send or receive a share, which fast links gather: t devices that need a tensor whole get a t-th of it each over
the slow link. Gradients take the same way back. So a route is a shortest path over (submesh, layout): conversions on
the source's devices, one exchange between the submeshes, conversions on the target's devices. What devices of several
hosts need may be broadcast: it leaves its sender once, and each host passes it on to the next while it arrives.

Sources: scatter/gather of Megatron-LM (Narayanan et al. 2021, section 4.1), where both ends have an axis of one size;
for any two meshes, and broadcasts, Zhuang et al. 2023, "On Optimizing the Communication of Model Parallelism", arXiv
2211.05322.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ssdsl.ir.comm import Move
from ssdsl.ir.layout import REPLICATE, Layout, Shape, Shard, Submesh, is_apart
from ssdsl.lower.conversions.reshard import reshard, steps_time
from ssdsl.lower.conversions.transfer import keep_boxes, plan_move
from ssdsl.lower.operators.operand_types import inside
from ssdsl.lower.stages import Planned
from ssdsl.plan.regions import innermost
from ssdsl.record import Record, replace

Shares = Mapping[str, Shard]  # the digits that divide a tensor among devices that hold it whole, by axis
NO_SHARES: Shares = {}
Way = TypeVar("Way")
CLEARLY = 0.99  # of a time: what takes less is faster, what takes more is as fast


class Route(NamedTuple):
    """The shares in which a tensor leaves its source and arrives at its target, and whether pieces that several devices
    need are broadcast."""

    leaving: Shares = NO_SHARES
    arriving: Shares = NO_SHARES
    broadcast: bool = False


class RouteEnd(Record):
    """One end of a transfer: the layouts of the value and of its gradient (None: it has none) on a submesh, as
    operators there make or need them."""

    submesh: Submesh
    value: Layout
    gradient: Layout | None

    def travelling(self, shares: Shares) -> "RouteEnd":
        """The end as a tensor leaves it, or arrives there: sums taken, regions joined, in shares."""
        gradient = self.gradient and with_shares(self.gradient.travelling(), self.submesh, shares)
        return RouteEnd(self.submesh, with_shares(self.value.travelling(), self.submesh, shares), gradient)


class Parts(Record):
    """The unit of one transfer: a part in time of a tensor of `shape`, with one value of each of the digits `times`;
    sizes of the factors `uneven` vary from part to part. `itemsize` in bytes."""

    shape: Shape
    times: tuple[Shard, ...]
    uneven: frozenset[int]
    itemsize: int

    @property
    def size(self) -> Shape:
        """The shape of one part."""
        return self.shape.local(self.times)

    def boxes(self, layout: Layout) -> Layout:
        """The layout without digits that leave a device more than one box of a part."""
        return keep_boxes(layout, self.shape, self.times, self.uneven)

    def move(self, source: Submesh, before: Layout, target: Submesh, after: Layout, *, broadcast: bool = False) -> Move:
        """The boxes that bring a part from one submesh and layout to another; with `broadcast` each leaves a device
        once."""
        move = plan_move(inside(before, self.times), source, inside(after, self.times), target, self.size)
        return replace(move, broadcast=True) if broadcast and move.repeats else move


def find_route(lowering: Planned, source: RouteEnd, target: RouteEnd, parts: Parts) -> Route:
    """The fastest route of a tensor: the one with the fewest shares, and with broadcasts only where all others are
    clearly slower. Plain where links are unknown or `routes = false`. `target.value` has one box for each device."""
    if lowering.cluster is None or not lowering.cluster.routes:
        return Route()
    ways = [*itertools.product(_choices(lowering, source, parts), _choices(lowering, target, parts))]
    times = [_times(lowering, source, target, way, parts) for way in ways]
    least = min(time for time, _ in times)
    broadcasts = [(t, Route(*way, True)) for (_, t), way in zip(times, ways, strict=True) if t < CLEARLY * least]
    return first_as_fast(broadcasts or [(t, Route(*way)) for (t, _), way in zip(times, ways, strict=True)])


def first_as_fast(ways: Iterable[tuple[float, Way]]) -> Way:
    """The first of some ways, each with its seconds, than which none is clearly faster."""
    timed = [*ways]
    least = min(time for time, _ in timed)
    return next(way for time, way in timed if time * CLEARLY <= least)


def with_shares(layout: Layout, submesh: Submesh, shares: Shares) -> Layout:
    """The layout with the shares as digits along their axes."""
    places = zip(submesh.axes, layout.places, strict=True)
    return Layout(tuple(shares.get(a, place) for (a, _), place in places))


def _choices(lowering: Planned, end: RouteEnd, parts: Parts) -> Iterator[Shares]:
    """Yields no shares; then shares along the axis with the fastest links, of the axes along which the tensor is whole;
    then along the next one too, and so on."""
    shares: dict[str, Shard] = {}
    yield dict(shares)
    links = lowering.links(end.submesh).along
    for number in sorted(range(len(links)), key=lambda n: (-links[n].bandwidth, -n)):
        axis, ranks = end.submesh.axes[number]
        there = end.travelling(shares)
        layouts = [there.value] if there.gradient is None else [there.value, there.gradient]
        if ranks == 1 or any(layout.places[number] is not REPLICATE for layout in layouts):
            continue
        if (share := _share(ranks, layouts, number, parts)) is not None:
            shares[axis] = share
            yield dict(shares)


def _share(ranks: int, layouts: list[Layout], axis: int, parts: Parts) -> Shard | None:
    """The digit that divides a tensor into so many parts: of the first factor that can be cut once more at the same
    place in all parts, with one box per device; None if there is none."""
    every = {*(d for layout in layouts for d in layout.shards()), *parts.times}
    for factor, size in enumerate(parts.shape.factors):
        held = {d for d in every if d.factor == factor}
        digit = innermost((d.digit for d in held), size, ranks)
        if factor in parts.uneven or digit is None:
            continue
        share = Shard(factor, digit)
        cut = [layout.replacing(axis, share) for layout in layouts]
        if is_apart(share, tuple(every - held), parts.shape) and all(parts.boxes(layout) == layout for layout in cut):
            return share
    return None


def _times(
    lowering: Planned, source: RouteEnd, target: RouteEnd, way: tuple[Shares, Shares], parts: Parts
) -> tuple[float, float]:
    """The seconds of a value's way, and of its gradient's way back: without broadcasts, and with them."""
    left, arrived = source.travelling(way[0]), target.travelling(way[1])
    time = _within(lowering, source.submesh, source.value, left.value, parts)
    single, several = _between(lowering, left.submesh, left.value, arrived.submesh, arrived.value, parts)
    time += _within(lowering, target.submesh, arrived.value, target.value, parts)
    if source.gradient is None or target.gradient is None or left.gradient is None:
        return time + single, time + several
    time += _within(lowering, target.submesh, target.gradient, arrived.value, parts, sums=True)
    back = _between(lowering, target.submesh, arrived.value, source.submesh, left.gradient, parts)
    time += _within(lowering, source.submesh, left.gradient, source.gradient, parts, sums=True)
    return time + single + back[0], time + several + back[1]


def _within(
    lowering: Planned, submesh: Submesh, before: Layout, after: Layout, parts: Parts, *, sums: bool = False
) -> float:
    links, shape = lowering.links(submesh), parts.size
    here, there = inside(before, parts.times), inside(after, parts.times)
    steps = reshard(here, there, shape, submesh.axes, parts.itemsize, links, sums=sums)
    return steps_time(steps, submesh.axes, parts.itemsize, links)


def _between(
    lowering: Planned, source: Submesh, before: Layout, target: Submesh, after: Layout, parts: Parts
) -> tuple[float, float]:
    """The seconds of one direction: without broadcasts, and with them."""
    assert lowering.cluster is not None
    move = parts.move(source, before, target, after)
    ways = (move, replace(move, broadcast=True)) if move.repeats else (move,)
    paths = ([(ranks, n * parts.itemsize) for ranks, n in way.paths(source, target)] for way in ways)
    times = [sum(lowering.cluster.exchange(found)) for found in paths]
    return times[0], times[-1]
