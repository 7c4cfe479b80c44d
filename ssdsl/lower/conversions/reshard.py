"""Communication as a shortest path: the cheapest steps that turn one layout of a tensor into another."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ssdsl.cluster.link import MeshLinks
from ssdsl.ir.comm import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    KeepFirst,
    Narrow,
    ReduceScatter,
    Step,
    kind_of,
    travels,
)
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, cut, is_apart, nests, regions_of
from ssdsl.runtime.layout.regions import Regions, length, pieces
from ssdsl.text.diagnostic import InternalError

Axes = tuple[tuple[str, int], ...]
LOCAL_COST = 1e-9  # a local step costs next to nothing, but fewer of them are better


@dataclass(frozen=True, slots=True)
class _Edge:
    step: Step
    after: Layout
    cost: float


@lru_cache(maxsize=65536)
def reshard(
    before: Layout, after: Layout, shape: Shape, axes: Axes, itemsize: int, links: MeshLinks, *, sums: bool = False
) -> tuple[Step, ...]:
    """The cheapest steps from one layout to another of a tensor of `shape` on a submesh with these axes.

    Dijkstra's search over layouts. Every layout can be gathered and every replica sliced, so a path exists: a digit
    inside unequal parts of one axis is cut while those parts are gathered. Sizes are those of the tensor as a task sees
    it, `itemsize` is in bytes; `sums`: the tensor is a gradient, whose overlapping
    parts are addends.

    >>> from ssdsl.cluster.link import LOOPBACK, MeshLinks
    >>> from ssdsl.ir.comm import AllToAll
    >>> from ssdsl.ir.layout import Cut
    >>> by_rows, by_columns = Layout((Shard(0, 4, 2),)), Layout((Shard(1, 8, 2),))
    >>> square, axes = Shape(((8,), (16,))), (("tp", 2),)
    >>> links = MeshLinks((LOOPBACK,))
    >>> reshard(Layout((PARTIAL,)), by_rows, square, axes, 4, links)
    (ReduceScatter(axes=('tp',), elements=128, target=Cut(dim=0, outer=1, count=2, at=None)),)
    >>> reshard(by_rows, by_columns, square, axes, 4, links) == (
    ...     AllToAll(("tp",), 64, source=Cut(dim=0, outer=1, count=2), target=Cut(dim=1, outer=1, count=2)),
    ... )
    True

    Source: Dijkstra 1959. Raises InternalError if there is no path.
    """
    best: dict[Layout, float] = {before: 0.0}
    queue: list[tuple[float, int, Layout, tuple[Step, ...]]] = [(0.0, 0, before, ())]
    tick = itertools.count(1)
    while queue:
        cost, _, layout, path = heapq.heappop(queue)
        if layout == after:
            return path
        if cost > best[layout]:
            continue
        for edge in _edges(layout, before, after, shape, axes, itemsize, links, sums):
            total = cost + edge.cost
            if total < best.get(edge.after, float("inf")):
                best[edge.after] = total
                heapq.heappush(queue, (total, next(tick), edge.after, (*path, edge.step)))
    raise InternalError(f"no path from {before} to {after}")


def steps_time(steps: Iterable[Step], axes: Axes, itemsize: int, links: MeshLinks) -> float:
    """The seconds of the steps, one after another; a local step takes none."""
    numbers = {name: number for number, (name, _) in enumerate(axes)}
    time = 0.0
    for step in steps:
        if travels(step):
            over = [numbers[a] for a in step.axes]
            ranks = math.prod(axes[a][1] for a in over)
            whole = step.elements * (ranks if isinstance(step, AllToAll) else 1) * itemsize
            time += links.over(*over).collective_time(kind_of(step), whole, ranks)
    return time


def _edges(
    layout: Layout, before: Layout, after: Layout, shape: Shape, axes: Axes, itemsize: int, links: MeshLinks, sums: bool
) -> Iterator[_Edge]:
    """Every step from a layout, with its cost. A new collective is one case here and one in `ir/comm.py`."""

    def size(shards: tuple[Shard, ...]) -> int:
        return shape.local(shards).numel

    def cost(kind: str, elements: int, ranks: int, *over: int) -> float:
        """The seconds of a collective over the axes `over`."""
        return links.over(*over).collective_time(kind, elements * itemsize, ranks)

    partial = [a for a, p in enumerate(layout.places) if p is PARTIAL and after.places[a] is not PARTIAL]
    for chosen in [[a] for a in partial] + ([partial] if len(partial) > 1 else []):
        result = Layout(tuple(REPLICATE if a in chosen else p for a, p in enumerate(layout.places)))
        ranks, elements = math.prod(axes[a][1] for a in chosen), size(layout.shards())
        step: Step = AllReduce(tuple(axes[a][0] for a in chosen), elements)
        yield _Edge(step, result, cost("all_reduce", elements, ranks, *chosen))

    for a, place in enumerate(layout.places):
        name, ranks = axes[a]
        others = tuple(p for b, p in enumerate(layout.places) if b != a and isinstance(p, Shard))
        whole = size(others)
        targets = [
            s
            for s in dict.fromkeys((before.places[a], after.places[a]))
            if isinstance(s, Shard) and s != place and _fits(s, others, shape)
        ]
        for target in dict.fromkeys((before.places[a], after.places[a], REPLICATE)):
            if (found := _exchange(place, target, others, shape, (name, ranks), sums)) is not None:
                yield _Edge(found, layout.replacing(a, target), cost("exchange", found.elements, ranks, a))
        if isinstance(place, Shard) and place.at is not None:
            continue
        if isinstance(place, Shard) and is_apart(place, others, shape):
            step = AllGather((name,), whole, cut(shape, place, others))
            yield _Edge(step, layout.replacing(a, REPLICATE), cost("all_gather", whole, ranks, a))
            for target in targets:
                # the cost of an all_to_all is by the whole tensor, its payload by a device's part (cluster/link.py)
                if target.at is None and _fits(target, (*others, place), shape):  # both digits can be fixed at once
                    source_cut = cut(shape, place, (*others, target))
                    step = AllToAll((name,), whole // ranks, source_cut, cut(shape, target, (*others, place)))
                    yield _Edge(step, layout.replacing(a, target), cost("all_to_all", whole, ranks, a))
        if isinstance(place, Shard):
            continue
        for target in targets:
            if place is PARTIAL and target.at is not None:
                continue
            if place is PARTIAL:
                step = ReduceScatter((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), cost("reduce_scatter", whole, ranks, a))
            else:
                step = Narrow((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), LOCAL_COST)
        if place is REPLICATE and after.places[a] is PARTIAL:
            yield _Edge(KeepFirst((name,), whole), layout.replacing(a, PARTIAL), LOCAL_COST)


def _exchange(
    place: Placement, target: Placement, others: tuple[Shard, ...], shape: Shape, axis: tuple[str, int], sums: bool
) -> Exchange | None:
    """The step between two placements, one of which has regions; None if there is no such step, or nothing to send."""
    shards = [p for p in (place, target) if isinstance(p, Shard)]
    if place == target or target is PARTIAL or all(s.at is None for s in shards) or place is REPLICATE:
        return None
    (factor, *more) = {s.factor for s in shards}
    if more or any(s.factor == factor for s in others) or not is_apart(shards[0], others, shape):
        return None
    name, parts = axis
    size = shape.factors[factor]
    have, need = (regions_of(p, size, parts) for p in (place, target))
    if have is None or need is None:
        return None
    adds = sums or place is PARTIAL
    source, goal = (cut(shape, Shard(factor, 1, parts, at), others) for at in (have, need))
    rest = shape.local(others).numel // size
    return Exchange((name,), most_received(have, need, sums=adds) * rest, source, goal, adds)


@lru_cache(maxsize=4096)
def most_received(have: Regions, need: Regions, *, sums: bool) -> int:
    """The most positions that a part receives from other parts."""
    every = (pieces(have, need, me, sums=sums) for me in range(len(need)))
    return max(sum(length(p.received) for p in own if p.peer != me) for me, own in enumerate(every))


def _fits(shard: Shard, others: tuple[Shard, ...], shape: Shape) -> bool:
    same = tuple(s for s in others if s.factor == shard.factor)
    return nests((*same, shard), shape.factors[shard.factor]) and is_apart(shard, others, shape)
