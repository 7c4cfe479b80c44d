"""Points of a grid: which few are worth an expensive measurement, given a cheap bound of each.

A point is measured where its estimate is least: its bound, times how much more than their bounds the measured points
near to it took. Nothing that was measured is forgotten, so that an estimate becomes right where it matters. A point
whose bound is not below the best measurement is never measured.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

Point = tuple[int, ...]
FAR = 2.0  # steps from what was measured: so far away a point may be as near to its bound as any was
NEAREST = 4  # measured points that an estimate asks
SURE = 1.1  # an estimate is believed up to this factor times the largest by which a recent one was too high
TINY = 1e-30
OF_A_KIND = 2  # more measurements for the best of each kind
RECENT = 12  # estimates that are looked back on
DOUBT = 3.0  # the factor by which the first estimates may be too high
FIRST = 24  # bounds that are found before the first measurement


@dataclass(frozen=True, slots=True)
class Worth:
    """What a point costs, and the share of what it may use that it uses: above one, it is no solution. `effort` is how
    much a measurement takes: of two that promise the same the easier comes first; 0.1 is worth a tenth of the cost."""

    cost: float
    share: float = 0.0
    effort: float = 0.0

    @property
    def with_effort(self) -> tuple[float, float]:
        """By which points are measured: of those that are no solutions the nearest comes first."""
        return (self.share if self.share > 1 else 0.0), self.cost * (1 + self.effort)

    @property
    def key(self) -> tuple[bool, float, float]:
        """The better of two has the lower one; of two that are no solutions, the nearer."""
        return self.share > 1, self.share if self.share > 1 else self.cost, self.cost


@dataclass(frozen=True, slots=True)
class Answer:
    """A point that was measured. None of the others costs less than `bound`; `left` of them may still be better than
    the best, as far as bounds are known."""

    point: Point
    worth: Worth | None  # None: it could not be measured
    bound: float
    left: int


NONE = Worth(math.inf, math.inf)  # before anything is measured
Kind = Callable[[Point], Hashable]
Bound = Callable[[Point], Worth | None]
Measure = Callable[[Point], Worth | None]


def grid(points: Sequence[Point], bound: Bound, measure: Measure, kind: Kind = lambda point: None) -> Iterator[Answer]:
    """Measurements of points, the first of them first, then the most promising, until none promises anything; at last a
    few of each kind, for the best of each.

    `bound` gives for a point what it costs and uses at least, or None where it is no point at all; `kind` is asked
    behind it. `points` whose first number differs are told apart: what one shows says nothing of the other.
    """
    search = _Grid(bound, measure, kind)
    for number, point in enumerate(_spread(points)):
        search.unread = len(points) - number - 1
        search.add(point)
        if number == 0 or number == FIRST:
            yield from search.step()
    while (answer := next(search.step(), None)) is not None:
        yield answer
    for one in dict.fromkeys(o.kind for o in list(search.open.values())):
        for _ in range(OF_A_KIND):
            yield from search.step([one])


@dataclass(slots=True)
class _Open:
    """A point that is not measured, with its place among the others and the nearest that are, at their distances."""

    least: Worth
    kind: Hashable
    place: tuple[float, ...]
    near: list[tuple[float, Point]] = field(default_factory=list)

    def see(self, point: Point, place: tuple[float, ...]) -> None:
        distance = sum(abs(a - b) for a, b in zip(self.place, place, strict=True))
        if len(self.near) < NEAREST or distance < self.near[-1][0]:
            insort(self.near, (distance, point))
            del self.near[NEAREST:]


@dataclass(slots=True)
class _Grid:
    bound: Bound
    measure: Measure
    kind: Kind
    unread: int = 0  # points of which not even a bound is known
    open: dict[Point, _Open] = field(default_factory=dict)
    more: dict[Point, tuple[float, float]] = field(default_factory=dict)  # than the bound: cost and share of measured
    least: tuple[float, float] = (math.inf, math.inf)  # of these
    best: Worth = NONE
    of_kind: dict[Hashable, Worth] = field(default_factory=dict)  # the best
    wrong: deque[float] = field(default_factory=lambda: deque([DOUBT] * RECENT, RECENT))

    def add(self, point: Point) -> None:
        if (least := self.bound(point)) is not None and least.share <= 1:
            added = self.open[point] = _Open(least, self.kind(point), _place(point))
            for other in self.more:
                if other[0] == point[0]:
                    added.see(other, _place(other))

    def step(self, kinds: Sequence[Hashable] | None = None) -> Iterator[Answer]:
        """The next measurement, if one is worth it: for the best of all, or for that of a kind."""
        best = self.best if kinds is None else self.of_kind.get(kinds[0], NONE)
        open_ = {p: o for p, o in self.open.items() if (kinds is None or o.kind in kinds) and _may_win(o.least, best)}
        if not open_:
            return
        likely = {p: self._estimate(o) for p, o in open_.items()}
        point = min(likely, key=lambda p: (likely[p].share > 1, *likely[p].with_effort, p))
        doubt = SURE * max(self.wrong) if kinds is None else 1.0
        if best.share <= 1 and min(likely.values(), key=lambda w: w.key).cost > doubt * best.cost:
            return
        opened, found = self.open.pop(point), self.measure(point)
        if found is not None:
            if opened.near:
                self.wrong.append(likely[point].cost / max(found.cost, TINY))
            self._learn(point, opened, found)
        left = [o.least.cost for o in self.open.values() if _may_win(o.least, self.best)]
        least = 0.0 if self.unread else min(left, default=math.inf)
        yield Answer(point, found, least, len(left) + self.unread)

    def _learn(self, point: Point, opened: _Open, found: Worth) -> None:
        least = opened.least
        self.more[point] = found.cost / max(least.cost, TINY), found.share / max(least.share, TINY)
        self.least = min(self.least[0], self.more[point][0]), min(self.least[1], self.more[point][1])
        self.best = min(self.best, found, key=lambda w: w.key)
        self.of_kind[opened.kind] = min(self.of_kind.get(opened.kind, NONE), found, key=lambda w: w.key)
        for other, waiting in self.open.items():
            if other[0] == point[0]:
                waiting.see(point, opened.place)

    def _estimate(self, point: _Open) -> Worth:
        """What the point is likely to cost and to use."""
        if not self.more:
            return point.least
        weights = _weight(FAR)
        cost, share = weights * self.least[0], weights * self.least[1]
        for distance, other in point.near:
            more, weight = self.more[other], _weight(distance)
            weights, cost, share = weights + weight, cost + weight * more[0], share + weight * more[1]
        least = point.least
        return Worth(least.cost * cost / weights, least.share * share / weights, least.effort)


def _may_win(least: Worth, best: Worth) -> bool:
    return best.share > 1 or least.cost < best.cost


def _weight(distance: float) -> float:
    return 1 / (distance + 0.1) ** 2


def _place(point: Point) -> tuple[float, ...]:
    """Doubling a number is a step, whatever the number."""
    return tuple(math.log2(max(x, 0.5)) for x in point[1:])


def _spread(points: Sequence[Point]) -> Iterator[Point]:
    """The first, then all others in an order in which those that lie side by side come far apart."""
    count = len(points)
    stride = next((s for s in range(int(count * 0.618) or 1, count + 1) if math.gcd(s, count) == 1), 1)
    yield from (points[number * stride % count] for number in range(count))
