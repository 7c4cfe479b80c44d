"""Points of a grid: which few are worth an expensive measurement, given a cheap bound of each, and a nearer one that
takes longer.

The point whose estimate is least is looked at next: its nearer bound is found, and if its estimate is then still the
least, it is measured. An estimate is a point's bound, times how much more than that the points near to it took: from
bound to nearer bound, and from that to what was measured. Nothing that was found is forgotten, so that estimates become
right where it matters. A point whose bound is not below the best measurement is never measured.
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
EASIER = 10.0  # so many times as much counts effort there
EASY = 0.1  # the most effort that the best of a kind is worth
LOOKS = 5  # nearer bounds that are found for it
MAY_FIT = 2.0  # an estimated share up to which a point may fit
RECENT = 14  # estimates that are looked back on
DOUBT = 3.0  # the factor by which the first estimates may be too high
NEXT = 16  # nearer bounds that are likely to be asked for next
FIRST = 24  # bounds that are found before the first measurement


@dataclass(frozen=True, slots=True)
class Worth:
    """What a point costs, and the share of what it may use that it uses: above one, it is no solution. `effort` is how
    much a measurement takes: of two that promise the same the easier comes first; 0.1 is worth a tenth of the cost."""

    cost: float
    share: float = 0.0
    effort: float = 0.0

    def with_effort(self, times: float = 1.0) -> tuple[float, float]:
        """By which points are measured: of those that are no solutions the nearest comes first."""
        return (self.share if self.share > 1 else 0.0), self.cost * (1 + times * self.effort)

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
Soon = Callable[[bool, Sequence[Point]], None]


def grid(
    points: Sequence[Point],
    bound: Bound,
    measure: Measure,
    kind: Kind = lambda point: None,
    nearer: Bound | None = None,
    soon: Soon = lambda is_near, points: None,
) -> Iterator[Answer]:
    """Measurements of points, the first of them first, then the most promising, until none promises anything; at last a
    few of each kind, for the best of each.

    `bound` gives for a point what it costs and uses at least, or None where it is no point at all; so does `nearer`,
    asked for a point before it is measured; `kind` is asked behind `bound`. `points` whose first number differ are told
    apart: what one shows says nothing of the other. `soon` is told of which points the bound, or the nearer one, is
    likely to be asked next, the likeliest first.
    """
    search = _Grid(bound, measure, kind, nearer, soon)
    spread = [*_spread(points)]
    soon(False, spread)
    for number, point in enumerate(spread):
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
class _Ratios:
    """By how much points exceeded a bound, in cost and in share, and the least that any did."""

    of: dict[Point, tuple[float, float]] = field(default_factory=dict)
    least: tuple[float, float] = (math.inf, math.inf)

    def add(self, point: Point, found: Worth, bound: Worth) -> None:
        cost, share = found.cost / max(bound.cost, TINY), found.share / max(bound.share, TINY)
        self.of[point] = cost, share
        self.least = min(self.least[0], cost), min(self.least[1], share)

    def times(self, bound: Worth, near: Sequence[tuple[float, Point]]) -> Worth:
        """What a point with this bound is likely to come to, that has these near to it."""
        if not self.of:
            return bound
        weights = _weight(FAR)
        cost, share = weights * self.least[0], weights * self.least[1]
        for distance, other in near:
            (more_cost, more_share), weight = self.of[other], _weight(distance)
            weights, cost, share = weights + weight, cost + weight * more_cost, share + weight * more_share
        return Worth(bound.cost * cost / weights, bound.share * share / weights, bound.effort)


@dataclass(slots=True)
class _Open:
    """A point that is not measured, with its place among the others; of those whose nearer bound is known, and of those
    that are measured, the nearest at their distances."""

    least: Worth
    kind: Hashable
    place: tuple[float, ...]
    is_near: bool = False  # `least` is the nearer bound
    bounded: list[tuple[float, Point]] = field(default_factory=list)
    measured: list[tuple[float, Point]] = field(default_factory=list)

    def may_win(self, best: Worth) -> bool:
        """Whether its bound is below what is the best so far."""
        return best.share > 1 or self.least.cost < best.cost

    def see(self, known: list[tuple[float, Point]], point: Point, place: tuple[float, ...]) -> None:
        """One more of `bounded` or `measured`."""
        distance = sum(abs(a - b) for a, b in zip(self.place, place, strict=True))
        if len(known) < NEAREST or distance < known[-1][0]:
            insort(known, (distance, point))
            del known[NEAREST:]


@dataclass(slots=True)
class _Grid:
    bound: Bound
    measure: Measure
    kind: Kind
    nearer: Bound | None
    soon: Soon
    unread: int = 0  # points of which not even a bound is known
    open: dict[Point, _Open] = field(default_factory=dict)
    bounded: _Ratios = field(default_factory=_Ratios)  # of nearer bounds to the first
    measured: _Ratios = field(default_factory=_Ratios)  # of measurements to nearer bounds
    best: Worth = NONE
    of_kind: dict[Hashable, Worth] = field(default_factory=dict)  # the best
    wrong: deque[float] = field(default_factory=lambda: deque([DOUBT] * RECENT, RECENT))

    def add(self, point: Point) -> None:
        if (least := self.bound(point)) is not None and least.share <= 1:
            added = self.open[point] = _Open(least, self.kind(point), _place(point), self.nearer is None)
            for known, near in ((self.bounded, added.bounded), (self.measured, added.measured)):
                for other in known.of:
                    if other[0] == point[0]:
                        added.see(near, other, _place(other))

    def step(self, kinds: Sequence[Hashable] | None = None) -> Iterator[Answer]:
        """The next measurement, if one is worth it: for the best of all, or for that of a kind."""
        best = self.best if kinds is None else self.of_kind.get(kinds[0], NONE)
        hurry, looks = (1.0, len(self.open)) if kinds is None else (EASIER, LOOKS)
        for _ in range(looks + 1):
            open_ = {p: o for p, o in self.open.items() if o.may_win(best) and self._is_asked(o, kinds)}
            if not open_:
                return
            likely = {p: self._estimate(o) for p, o in open_.items()}
            if best.share <= 1:
                most = best.cost * (SURE * max(self.wrong) if kinds is None else 1.0)
                likely = {p: w for p, w in likely.items() if w.cost <= most and w.share <= MAY_FIT}
                if not likely:
                    return
            order = sorted(likely, key=lambda p: (likely[p].share > 1, *likely[p].with_effort(hurry), p))
            if not self.unread:
                self.soon(True, [p for p in order if not self.open[p].is_near][:NEXT])
            point = order[0]
            if self.open[point].is_near:
                yield self._measure(point, likely[point])
                return
            self._look_nearer(point)

    def _is_asked(self, point: _Open, kinds: Sequence[Hashable] | None) -> bool:
        """Whether it is one of these kinds, and easy to measure."""
        return kinds is None or (point.kind in kinds and point.least.effort <= EASY)

    def _look_nearer(self, point: Point) -> None:
        """Finds the nearer bound of a point, which may be none."""
        assert self.nearer is not None, "without one, every bound is the nearer one"
        opened, found = self.open[point], self.nearer(point)
        if found is None or found.share > 1:
            del self.open[point]
            return
        least = opened.least
        found = Worth(max(found.cost, least.cost), max(found.share, least.share), least.effort)
        expected = self.bounded.times(opened.least, opened.bounded)
        if opened.bounded:
            self.wrong.append(expected.cost / max(found.cost, TINY))
        self.bounded.add(point, found, opened.least)
        opened.least, opened.is_near = found, True
        for other, waiting in self.open.items():
            if other[0] == point[0] and not waiting.is_near:
                waiting.see(waiting.bounded, point, opened.place)

    def _measure(self, point: Point, expected: Worth) -> Answer:
        opened, found = self.open.pop(point), self.measure(point)
        if found is not None:
            if opened.measured:
                self.wrong.append(expected.cost / max(found.cost, TINY))
            self.measured.add(point, found, opened.least)
            self.best = min(self.best, found, key=lambda w: w.key)
            self.of_kind[opened.kind] = min(self.of_kind.get(opened.kind, NONE), found, key=lambda w: w.key)
            for other, waiting in self.open.items():
                if other[0] == point[0]:
                    waiting.see(waiting.measured, point, opened.place)
        left = [o.least.cost for o in self.open.values() if o.may_win(self.best)]
        least = 0.0 if self.unread else min(left, default=math.inf)
        return Answer(point, found, least, len(left) + self.unread)

    def _estimate(self, point: _Open) -> Worth:
        """What the point is likely to cost and to use."""
        least = point.least if point.is_near else self.bounded.times(point.least, point.bounded)
        return self.measured.times(least, point.measured)


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
