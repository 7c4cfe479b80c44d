"""Communication as a shortest path: the cheapest steps that turn one layout of a tensor into another."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from ssdsl.cluster.link import Link
from ssdsl.lower.layout import PARTIAL, REPLICATE, Cut, Digit, Layout, Shape, cut, nests
from ssdsl.text.diagnostic import InternalError


class StepKind(StrEnum):
    ALL_REDUCE = "all_reduce"  # P -> R
    ALL_GATHER = "all_gather"  # S -> R
    REDUCE_SCATTER = "reduce_scatter"  # P -> S
    ALL_TO_ALL = "all_to_all"  # S -> S of another factor
    SLICE = "narrow"  # R -> S, local
    KEEP_FIRST = "keep_first"  # R -> P, local: the first rank keeps the value, the others have zeros


@dataclass(frozen=True, slots=True)
class Step:
    """One step along one axis of the mesh (an all_reduce may join several): where the digit lies in the local tensor.

    `source` is the place of the digit before (all_gather, all_to_all), `target` after (narrow, reduce_scatter,
    all_to_all).
    """

    kind: StepKind
    axes: tuple[str, ...]
    source: Cut | None = None
    target: Cut | None = None


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

    Dijkstra's search over layouts. Every layout can be gathered and every replica sliced, so a path exists.
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
    def size(digits: tuple[Digit, ...]) -> int:
        return whole_bytes // math.prod(d.count for d in digits)

    whole_bytes = shape.numel * itemsize
    partial = [a for a, p in enumerate(layout.places) if p is PARTIAL and after.places[a] is not PARTIAL]
    for chosen in [[a] for a in partial] + ([partial] if len(partial) > 1 else []):
        result = Layout(tuple(REPLICATE if a in chosen else p for a, p in enumerate(layout.places)))
        ranks = 1
        for a in chosen:
            ranks *= axes[a][1]
        cost = link.collective_time("all_reduce", size(layout.digits()), ranks)
        yield _Edge(Step(StepKind.ALL_REDUCE, tuple(axes[a][0] for a in chosen)), result, cost)

    for a, place in enumerate(layout.places):
        name, ranks = axes[a]
        others = tuple(p for b, p in enumerate(layout.places) if b != a and isinstance(p, Digit))
        whole = size(others)
        targets = [
            d
            for d in dict.fromkeys((before.places[a], after.places[a]))
            if isinstance(d, Digit) and d != place and _fits(d, others, shape)
        ]
        if isinstance(place, Digit):
            source = cut(shape, place, others)
            gathered = layout.replacing(a, REPLICATE)
            cost = link.collective_time("all_gather", whole, ranks)
            yield _Edge(Step(StepKind.ALL_GATHER, (name,), source=source), gathered, cost)
            for digit in targets:
                if _disjoint(place, digit, others, shape):
                    step = _exchange(name, place, digit, others, shape)
                    cost = link.collective_time("all_to_all", whole, ranks)
                    yield _Edge(step, layout.replacing(a, digit), cost)
            continue
        for digit in targets:
            target = cut(shape, digit, others)
            if place is PARTIAL:
                cost = link.collective_time("reduce_scatter", whole, ranks)
                step = Step(StepKind.REDUCE_SCATTER, (name,), target=target)
            else:
                cost, step = LOCAL_COST, Step(StepKind.SLICE, (name,), target=target)
            yield _Edge(step, layout.replacing(a, digit), cost)
        if place is REPLICATE and after.places[a] is PARTIAL:
            yield _Edge(Step(StepKind.KEEP_FIRST, (name,)), layout.replacing(a, PARTIAL), LOCAL_COST)


def _fits(digit: Digit, others: tuple[Digit, ...], shape: Shape) -> bool:
    same = tuple(d for d in others if d.factor == digit.factor)
    return nests((*same, digit), shape.factors[digit.factor])


def _disjoint(source: Digit, target: Digit, others: tuple[Digit, ...], shape: Shape) -> bool:
    """Whether both digits can be cut out of the tensor at once, as an all_to_all does."""
    return _fits(target, (*others, source), shape)


def _exchange(name: str, source: Digit, target: Digit, others: tuple[Digit, ...], shape: Shape) -> Step:
    """Cut out the target digit of the local part, exchange, and put the source digit back in its place."""
    return Step(
        StepKind.ALL_TO_ALL,
        (name,),
        source=cut(shape, source, (*others, target)),
        target=cut(shape, target, (*others, source)),
    )
