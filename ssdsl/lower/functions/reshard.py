"""Communication as a shortest path: the cheapest steps that turn one layout of a tensor into another."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ssdsl.cluster.link import Link
from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, KeepFirst, Narrow, ReduceScatter, Step
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Shape, Shard, cut, nests
from ssdsl.text.diagnostic import InternalError

Axes = tuple[tuple[str, int], ...]
LOCAL_COST = 1e-9  # a local step costs next to nothing, but fewer of them are better


@dataclass(frozen=True, slots=True)
class _Edge:
    step: Step
    after: Layout
    cost: float


@lru_cache(maxsize=65536)
def reshard(before: Layout, after: Layout, shape: Shape, axes: Axes, itemsize: int, link: Link) -> tuple[Step, ...]:
    """The cheapest steps from one layout to another of a tensor of `shape` on a submesh with these axes.

    Dijkstra's search over layouts. Every layout can be gathered and every replica sliced, so a path exists. Sizes are
    those of the tensor as a task sees it, `itemsize` is in bytes.

    >>> from ssdsl.cluster.link import LOOPBACK
    >>> by_rows, by_columns = Layout((Shard(0, 4, 2),)), Layout((Shard(1, 8, 2),))
    >>> square, axes = Shape(((8,), (16,))), (("tp", 2),)
    >>> reshard(Layout((PARTIAL,)), by_rows, square, axes, 4, LOOPBACK)
    (ReduceScatter(axes=('tp',), elements=128, target=Cut(dim=0, outer=1, count=2)),)
    >>> reshard(by_rows, by_columns, square, axes, 4, LOOPBACK)
    (AllToAll(axes=('tp',), elements=64, source=Cut(dim=0, outer=1, count=2), target=Cut(dim=1, outer=1, count=2)),)

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
        for edge in _edges(layout, before, after, shape, axes, itemsize, link):
            total = cost + edge.cost
            if total < best.get(edge.after, float("inf")):
                best[edge.after] = total
                heapq.heappush(queue, (total, next(tick), edge.after, (*path, edge.step)))
    raise InternalError(f"no path from {before} to {after}")


def _edges(
    layout: Layout, before: Layout, after: Layout, shape: Shape, axes: Axes, itemsize: int, link: Link
) -> Iterator[_Edge]:
    """Every step from a layout, with what it costs. A collective is one case here, one in `ir/comm.py`."""

    def size(shards: tuple[Shard, ...]) -> int:
        return shape.numel // math.prod(s.parts for s in shards)

    def cost(kind: str, elements: int, ranks: int) -> float:
        return link.collective_time(kind, elements * itemsize, ranks)

    partial = [a for a, p in enumerate(layout.places) if p is PARTIAL and after.places[a] is not PARTIAL]
    for chosen in [[a] for a in partial] + ([partial] if len(partial) > 1 else []):
        result = Layout(tuple(REPLICATE if a in chosen else p for a, p in enumerate(layout.places)))
        ranks, elements = math.prod(axes[a][1] for a in chosen), size(layout.shards())
        step: Step = AllReduce(tuple(axes[a][0] for a in chosen), elements)
        yield _Edge(step, result, cost("all_reduce", elements, ranks))

    for a, place in enumerate(layout.places):
        name, ranks = axes[a]
        others = tuple(p for b, p in enumerate(layout.places) if b != a and isinstance(p, Shard))
        whole = size(others)
        targets = [
            s
            for s in dict.fromkeys((before.places[a], after.places[a]))
            if isinstance(s, Shard) and s != place and _fits(s, others, shape)
        ]
        if isinstance(place, Shard):
            step = AllGather((name,), whole, cut(shape, place, others))
            yield _Edge(step, layout.replacing(a, REPLICATE), cost("all_gather", whole, ranks))
            for target in targets:
                if _fits(target, (*others, place), shape):  # both digits can be cut out of the tensor at once
                    source_cut = cut(shape, place, (*others, target))
                    step = AllToAll((name,), whole // ranks, source_cut, cut(shape, target, (*others, place)))
                    yield _Edge(step, layout.replacing(a, target), cost("all_to_all", whole, ranks))
            continue
        for target in targets:
            if place is PARTIAL:
                step = ReduceScatter((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), cost("reduce_scatter", whole, ranks))
            else:
                step = Narrow((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), LOCAL_COST)
        if place is REPLICATE and after.places[a] is PARTIAL:
            yield _Edge(KeepFirst((name,), whole), layout.replacing(a, PARTIAL), LOCAL_COST)


def _fits(shard: Shard, others: tuple[Shard, ...], shape: Shape) -> bool:
    same = tuple(s for s in others if s.factor == shard.factor)
    return nests((*same, shard), shape.factors[shard.factor])
