"""Communication as a shortest path: the cheapest steps that turn one layout of a tensor into another."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
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
    travels,
)
from ssdsl.ir.layout import PARTIAL, REPLICATE, Cut, Layout, Placement, Shape, Shard, cut, is_apart, regions_of
from ssdsl.plan.regions import Digit, nests
from ssdsl.record import Record
from ssdsl.runtime.layout.regions import Regions, length, pieces
from ssdsl.text.diagnostic import InternalError

Axes = tuple[tuple[str, int], ...]
LOCAL_COST = 1e-9  # a local step costs next to nothing, but fewer of them are better


class _Edge(Record):
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
    it, `itemsize` is in bytes; `sums`: the tensor is a gradient, whose overlapping parts are addends.

    >>> from ssdsl.cluster.link import LOOPBACK, MeshLinks
    >>> from ssdsl.ir.comm import AllToAll
    >>> from ssdsl.ir.layout import Cut
    >>> by_rows, by_columns = Layout((Shard(0, Digit(2, 4)),)), Layout((Shard(1, Digit(2, 8)),))
    >>> square, axes = Shape(((8,), (16,))), (("tp", 2),)
    >>> links = MeshLinks((LOOPBACK,))
    >>> reshard(Layout((PARTIAL,)), by_rows, square, axes, 4, links)
    (ReduceScatter(axes=('tp',), elements=128, target=Cut(dim=0, outer=1, count=2, at=None)),)
    >>> reshard(by_rows, by_columns, square, axes, 4, links) == (
    ...     AllToAll(("tp",), 64, source=(Cut(dim=0, outer=1, count=2),), target=(Cut(dim=1, outer=1, count=2),)),
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
            time += links.over(*over).collective_time(step.kind, whole, ranks)
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

    for over, factor in _with_regions(layout, before, after):
        if (here := _along(layout, over)) is None:
            continue
        ways, others = tuple(axes[a] for a in over), _besides(layout, over)
        ends = (_along(end, over, factor) for end in (before, after))
        for places in dict.fromkeys((*filter(None, ends), (REPLICATE,) * len(over))):
            if (found := _between_regions(here, places, others, shape, ways, sums)) is not None:
                ranks, moves = math.prod(n for _, n in ways), isinstance(found, Exchange)
                seconds = cost("exchange", found.elements, ranks, *over) if moves else LOCAL_COST
                yield _Edge(found, layout.replacing_all(over, places), seconds)

    for over, have, want in _all_moving(layout, before, after):
        others, ranks = _besides(layout, over), math.prod(axes[a][1] for a in over)
        if _fit((*have, *want), others, shape):  # the digits before and after can all be fixed at once
            whole, cuts = size(others), (_in_turn(shape, *order, others) for order in ((have, want), (want, have)))
            # the cost of an all_to_all is by the whole tensor, its payload by a device's part (cluster/link.py)
            step = AllToAll(tuple(axes[a][0] for a in over), whole // ranks, *cuts)
            yield _Edge(step, layout.replacing_all(over, want), cost("all_to_all", whole, ranks, *over))

    for a, place in enumerate(layout.places):
        name, ranks = axes[a]
        others = _besides(layout, (a,))
        whole = size(others)
        targets = [
            s
            for end in (before, after)
            for s in [end.places[a]]
            if isinstance(s, Shard) and end.axes_of(s) == (a,) and s != place and _fits(s, others, shape)
        ]
        targets = [*dict.fromkeys(targets)]
        if isinstance(place, Shard) and place.digit.at is not None:
            continue
        if isinstance(place, Shard) and is_apart(place, others, shape):
            step = AllGather((name,), whole, cut(shape, place, others))
            yield _Edge(step, layout.replacing(a, REPLICATE), cost("all_gather", whole, ranks, a))
        if isinstance(place, Shard):
            continue
        for target in targets:
            if place is PARTIAL and target.digit.at is not None:
                continue
            if place is PARTIAL:
                step = ReduceScatter((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), cost("reduce_scatter", whole, ranks, a))
            else:
                step = Narrow((name,), whole, cut(shape, target, others))
                yield _Edge(step, layout.replacing(a, target), LOCAL_COST)
        if place is REPLICATE and after.places[a] is PARTIAL:
            yield _Edge(KeepFirst((name,), whole), layout.replacing(a, PARTIAL), LOCAL_COST)


def _with_regions(*layouts: Layout) -> Iterable[tuple[tuple[int, ...], int]]:
    """The axes whose devices together have regions in one of the layouts, with the factor that is cut."""
    return dict.fromkeys((layout.axes_of(s), s.factor) for layout in layouts for s in layout.shards() if s.digit.at)


def _all_moving(
    layout: Layout, before: Layout, after: Layout
) -> Iterator[tuple[tuple[int, ...], tuple[Shard, ...], tuple[Shard, ...]]]:
    """Yields the groups of axes that each have another plain digit at one of the two ends, with their digits here and
    there."""
    for end in dict.fromkeys((before, after)):
        moving = [
            (a, here, there)
            for a, (here, there) in enumerate(zip(layout.places, end.places, strict=True))
            if isinstance(here, Shard)
            and isinstance(there, Shard)
            and here != there
            and here.digit.at is there.digit.at is None
        ]
        for count in range(1, len(moving) + 1):
            for group in itertools.combinations(moving, count):
                over, have, want = zip(*group, strict=True)
                yield over, have, want


def _in_turn(
    shape: Shape, digits: tuple[Shard, ...], also: tuple[Shard, ...], others: tuple[Shard, ...]
) -> tuple[Cut, ...]:
    """The place of each digit in a tensor that has one value of each of the others, and of the digits before it."""
    return tuple(cut(shape, digit, (*others, *also, *digits[:n])) for n, digit in enumerate(digits))


def _along(layout: Layout, over: tuple[int, ...], factor: int | None = None) -> tuple[Placement, ...] | None:
    """The placements on some axes, with REPLICATE for digits of other factors than the given one; None if one has
    regions of other axes too."""
    shards = [(a, p) for a in over for p in [layout.places[a]] if isinstance(p, Shard)]
    if any(not {*layout.axes_of(p)} <= {*over} for _, p in shards):
        return None
    other = {a for a, p in shards if factor is not None and p.factor != factor}
    return tuple(REPLICATE if a in other else layout.places[a] for a in over)


def _besides(layout: Layout, over: tuple[int, ...]) -> tuple[Shard, ...]:
    """The digits of the other axes."""
    return Layout(tuple(p for a, p in enumerate(layout.places) if a not in over)).shards()


def _between_regions(
    places: tuple[Placement, ...],
    target: tuple[Placement, ...],
    others: tuple[Shard, ...],
    shape: Shape,
    axes: Axes,
    sums: bool,
) -> Exchange | Narrow | None:
    """The step between two placements on some axes together, one of which has regions; None if there is no such step,
    or nothing to do. Along one axis, regions are cut out as other digits are."""
    shards, names = [p for p in (*places, *target) if isinstance(p, Shard)], tuple(name for name, _ in axes)
    if places == target or PARTIAL in target or all(s.digit.at is None for s in shards):
        return None
    if {*places} == {REPLICATE}:
        is_cut = len(axes) > 1 and _fits(shards[0], others, shape)
        return Narrow(names, shape.local(others).numel, cut(shape, shards[0], others)) if is_cut else None
    adds = sums or PARTIAL in places
    (factor, *more) = {s.factor for s in shards}
    if more or any(s.factor == factor for s in others) or not is_apart(shards[0], others, shape):
        return None
    if adds and REPLICATE in places:  # what is the same on several devices would be added several times
        return None
    counts, size = tuple(n for _, n in axes), shape.factors[factor]
    have, need = (_regions(p, size, counts) for p in (places, target))
    if have is None or need is None:
        return None
    return exchange(names, factor, have, need, shape, others, sums=adds)


def exchange(
    names: tuple[str, ...],
    factor: int,
    have: Regions,
    need: Regions,
    shape: Shape,
    others: tuple[Shard, ...],
    *,
    sums: bool = False,
    in_time: bool = False,
) -> Exchange:
    """The step from parts that are the regions `have` of a factor to the regions `need`, in a tensor that has one value
    of each of the `others`."""
    source, target = (cut(shape, Shard(factor, Digit(len(at), at=at)), others) for at in (have, need))
    elements = most_received(have, need, sums=sums) * (shape.local(others).numel // shape.factors[factor])
    return Exchange(names, elements, source, target, sums, in_time=in_time)


@lru_cache(maxsize=4096)
def _regions(places: tuple[Placement, ...], size: int, counts: tuple[int, ...]) -> Regions | None:
    """The region that each device has, of all those along some axes together; None if it depends on other digits too.

    >>> _regions((Shard(0, Digit(2, 4)), REPLICATE), 8, (2, 2))
    (((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),))
    >>> ends = Shard(0, Digit(2, at=(((0, 2), (6, 8)), ((2, 6),))))
    >>> _regions((REPLICATE, ends), 8, (2, 2))
    (((0, 2), (6, 8)), ((2, 6),), ((0, 2), (6, 8)), ((2, 6),))
    """
    shards = [p for p in places if isinstance(p, Shard)]
    digits = [p.digit for p in shards]
    if len(places) == 1 or not digits:
        return regions_of(places[0], size, math.prod(counts))
    devices = itertools.product(*map(range, counts))
    if digits[0].at is not None:
        own = [k for k, place in enumerate(places) if place == shards[0]]
        numbers = (math.prod(counts[k] for k in own[n + 1 :]) for n in range(len(own)))
        steps = dict(zip(own, numbers, strict=True))
        return tuple(digits[0].at[sum(d[k] * step for k, step in steps.items())] for d in devices)
    least = min(d.stride for d in digits)
    if math.prod(d.parts for d in digits) * least != size:
        return None
    starts = [sum(c * p.digit.stride for c, p in zip(d, places, strict=True) if isinstance(p, Shard)) for d in devices]
    return tuple(((start, start + least),) for start in starts)


@lru_cache(maxsize=4096)
def most_received(have: Regions, need: Regions, *, sums: bool) -> int:
    """The most positions that a part receives from other parts."""
    every = (pieces(have, need, me, sums=sums) for me in range(len(need)))
    return max(sum(length(p.received) for p in own if p.peer != me) for me, own in enumerate(every))


def _fits(shard: Shard, others: tuple[Shard, ...], shape: Shape) -> bool:
    return _fit((shard,), others, shape)


def _fit(shards: tuple[Shard, ...], others: tuple[Shard, ...], shape: Shape) -> bool:
    """Whether a part can have values of all these digits beside others, each with one place in all parts."""
    every = (*others, *shards)
    return all(
        nests(tuple(s.digit for s in every if s.factor == shard.factor), shape.factors[shard.factor])
        and is_apart(shard, others, shape)
        for shard in shards
    )
