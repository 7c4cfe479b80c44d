"""Chooses which few points of a grid are worth an expensive measurement, given a cheap lower bound of each, and a
nearer bound that takes longer.

The point with the least estimate comes next: its nearer bound is computed, and if its estimate is then still the least,
it is measured. An estimate is a point's bound, corrected by the amounts by which points near to it exceeded theirs:
from bound to nearer bound, and from nearer bound to measurement. The correction of a cost is a ratio or a difference,
whichever gives less. That of a share is a difference, because what a bound leaves out adds to what it counts. If points
near to this one exceeded a bound of 10 s by 2 s, one of 5 s is estimated as 6 s, not 7 s. Each new measurement corrects
later estimates, so those near to the best points become the most accurate.

A point whose bound is not below the best measurement is never measured, unless it may equal the best and comes before
it: of equal points the first is the answer.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ssdsl.record import Record

Point = tuple[int, ...]
FAR = 1.5  # the distance at which the least excess of all counts as a neighbour's
OFF = 0.125  # the place of 0
NEAREST = 4  # the number of neighbours in an estimate
SURE = 1.1  # an estimate is believed up to this factor times the largest by which a recent one was too high
TINY = 1e-30
OF_A_KIND = 2  # more measurements for the best of each kind
EASIER = 10.0  # the factor on effort there
EASY = 0.05  # the most effort of a measurement for the best of a kind
EASY_NEIGHBOUR = 0.1  # and of one beside the best point
LOOKS = 5  # the most nearer bounds that are computed for it
NEIGHBOURS = 4  # the most measurements beside the best point, at last
EQUAL = 1 + 1e-9  # costs are equal up to this factor
DOUBT_NEAR = 1.25  # the factor by which estimates may be too high there
MAY_FIT = 2.0  # an estimated share up to which a point may fit
RECENT = 22  # the number of estimates whose errors are remembered
DOUBT = 3.0  # the factor by which the first estimates may be too high
NEXT = 16  # nearer bounds that are likely to be asked for next
FIRST = 24  # bounds that are computed before the second measurement


class Worth(Record):
    """The cost of a point, and the share of the available resource that it uses: above 1 it is no solution.

    `effort` is what a measurement costs, as a share of the cost: of two points with equal promise the easier comes
    first. A bound counts one `unit` of the share; a point may need several of its units. `takes_what_is_there`: the
    measured share is not what the point needs, and says nothing of other points.
    """

    cost: float
    share: float = 0.0
    effort: float = 0.0
    unit: float = 1.0
    takes_what_is_there: bool = False

    def with_effort(self, times: float = 1.0) -> tuple[float, float]:
        """The key by which points are measured: solutions by cost, then the others by share, both with the effort."""
        dearer = 1 + times * self.effort
        return (self.share * dearer if self.share > 1 else 0.0), self.cost * dearer

    def may_win(self, best: "Worth", doubt: float) -> bool:
        """Whether a point may cost less than the best if this estimate is too high by up to the factor `doubt`, which
        counts for less where a measurement costs more."""
        return self.cost <= best.cost * max(1.0, doubt / (1 + self.effort))

    @property
    def key(self) -> tuple[bool, float, float]:
        """The key by which points are compared: solutions by cost, then the others by share."""
        return self.share > 1, self.share if self.share > 1 else self.cost, self.cost


class Answer(Record):
    """A measured point. No other point costs less than `bound`; `left` of them may still beat the best, by their
    bounds."""

    point: Point
    worth: Worth | None  # None: it could not be measured
    bound: float
    left: int


NONE = Worth(math.inf, math.inf)  # before anything is measured
Kind = Callable[[Point], Hashable]
Bound = Callable[[Point], Worth | None]
Measure = Callable[[Point], Worth | None]
Soon = Callable[[bool, Sequence[Point]], None]


class _More(NamedTuple):
    """The excess of a point over a bound: the ratio and the difference of costs, the difference of shares in units of
    the bound, and the ratio of the units."""

    times: float
    cost: float
    units: float
    unit: float


INFINITE = _More(math.inf, math.inf, math.inf, math.inf)


@dataclass(slots=True)
class _Excess:
    """The excess of points over a bound, and the least of each number."""

    of: dict[Point, _More] = field(default_factory=dict)
    least: _More = INFINITE

    def add(self, point: Point, found: Worth, bound: Worth) -> None:
        units, unit = (found.share - bound.share) / bound.unit, found.unit / bound.unit
        if found.takes_what_is_there:
            units, unit = 0.0, 1.0
        self.of[point] = more = _More(found.cost / max(bound.cost, TINY), found.cost - bound.cost, units, unit)
        self.least = _More(*map(min, self.least, more))

    def added(self, bound: Worth, near: Sequence[tuple[float, Point]]) -> Worth:
        """The likely cost and share of a point with this bound, by the excess of the points near to it, weighted by
        distance, and by the least excess, which counts as a point at distance `FAR`. Of the two costs, by ratios and by
        differences, the lower one: neither holds everywhere."""
        if not self.of:
            return bound
        known = [(_weight(FAR), self.least), *((_weight(distance), self.of[other]) for distance, other in near)]
        weights = sum(weight for weight, _ in known)
        times, cost, units, unit = (sum(w * more[n] for w, more in known) / weights for n in range(4))
        cost = min(bound.cost * times, bound.cost + cost)
        return Worth(cost, bound.share + units * bound.unit, bound.effort, unit * bound.unit)


@dataclass(slots=True)
class _Open:
    """A point that is not measured yet. `bounded` and `measured` are the nearest points with a nearer bound and with a
    measurement, each with its distance."""

    least: Worth
    kind: Hashable
    place: tuple[float, ...]
    is_near: bool = False  # `least` is the nearer bound
    bounded: list[tuple[float, Point]] = field(default_factory=list)
    measured: list[tuple[float, Point]] = field(default_factory=list)

    def may_win(self, best: Worth) -> bool:
        """Whether the point's bound is below the cost of the best so far."""
        return best.share > 1 or self.least.cost < best.cost

    def see(self, known: list[tuple[float, Point]], point: Point, place: tuple[float, ...]) -> None:
        """Adds a point to `bounded` or `measured`, if it is among the nearest."""
        distance = _distance(self.place, place)
        if len(known) < NEAREST or distance < known[-1][0]:
            insort(known, (distance, point))
            del known[NEAREST:]


class _Aim(NamedTuple):
    """The purpose of a measurement: one of these `points` that is better than `best`. `hurry` is the factor on effort,
    `looks` are the most nearer bounds that are computed for it, `doubt` is the factor by which estimates may be too
    high (None: that of recent ones)."""

    best: Worth
    points: frozenset[Point]
    hurry: float = 1.0
    looks: int = 0
    doubt: float | None = None


def _any(point: Point) -> Hashable:
    return None


def _nobody(is_near: bool, points: Sequence[Point]) -> None:
    pass


@dataclass(slots=True)
class Grid:
    """A search for the best point.

    `bound` gives a lower bound of a point's cost and share, or None for an invalid point. `nearer` does the same, and
    is called for a point before it is measured. `kind` is called after `bound`. Points whose first numbers differ are
    separate: measurements of one say nothing of the other. `soon` is told the points whose bound, or nearer bound, is
    likely to be asked for next, the likeliest first.
    """

    bound: Bound
    measure: Measure
    kind: Kind = _any
    nearer: Bound | None = None
    soon: Soon = _nobody
    unread: int = 0  # the number of points without any bound yet
    open: dict[Point, _Open] = field(default_factory=dict)
    bounded: _Excess = field(default_factory=_Excess)  # of nearer bounds to the first
    measured: _Excess = field(default_factory=_Excess)  # of measurements to nearer bounds
    best: Worth = NONE
    best_point: Point | None = None
    of_kind: dict[Hashable, Worth] = field(default_factory=dict)  # the best
    wrong: deque[float] = field(default_factory=lambda: deque([DOUBT] * RECENT, RECENT))

    def answers(self, points: Sequence[Point]) -> Iterator[Answer]:
        """Measures points: the first point first, then the most promising until none promises anything. Then a few
        neighbours of the best one, whose estimates may be wrong by a little, and points before it that may equal it. At
        last a few of each kind for the best of that kind."""
        spread = [*_spread(points)]
        self.unread = len(points)
        self.soon(False, spread)
        for number, point in enumerate(spread):
            self._add(point)
            self.unread -= 1
            if number == 0 or number == FIRST:
                yield from self._step()
        while (answer := next(self._step(), None)) is not None:
            yield answer
        for _ in range(NEIGHBOURS):
            yield from self._step(self._beside_best())
            yield from self._first_of_equals(points)
        for one in dict.fromkeys(o.kind for o in list(self.open.values())):
            for _ in range(OF_A_KIND):
                yield from self._step(self._best_of_kind(one))

    @property
    def left(self) -> int:
        """The number of points that may still beat the best, by their bounds; those without any bound yet are among
        them."""
        return self.unread + sum(o.may_win(self.best) for o in self.open.values())

    @property
    def least(self) -> float:
        """The least of the bounds of these points."""
        left = (o.least.cost for o in self.open.values() if o.may_win(self.best))
        return 0.0 if self.unread else min(left, default=math.inf)

    def _add(self, point: Point) -> None:
        if (least := self.bound(point)) is not None and least.share <= 1:
            added = self.open[point] = _Open(least, self.kind(point), _place(point), self.nearer is None)
            for known, near in ((self.bounded, added.bounded), (self.measured, added.measured)):
                for other in known.of:
                    if other[0] == point[0]:
                        added.see(near, other, _place(other))

    def _beside_best(self) -> "_Aim":
        """Points that differ from the best one in one number, which is at most twice or half as large."""
        best = self.best_point
        if best is None or self.best.share > 1:
            return _Aim(NONE, frozenset())
        near = frozenset(p for p in self.open if p[0] == best[0] and _is_beside(p, best))
        return _Aim(self.best, self._easy(near, EASY_NEIGHBOUR), EASIER, len(near), DOUBT_NEAR)

    def _first_of_equals(self, points: Sequence[Point]) -> Iterator[Answer]:
        """Measures the first point before the best one that costs as little by its nearer bound."""
        if self.best_point is None or self.best.share > 1:
            return
        most = self.best.cost * EQUAL
        before = (p for p in points[: points.index(self.best_point)] if p in self.open)
        for point in islice((p for p in before if self.open[p].is_near and self.open[p].least.cost <= most), 1):
            answer = self._measure(point, self._estimate(self.open[point]))
            if answer.worth is not None and answer.worth.share <= 1 and answer.worth.cost <= most:
                self.best_point = point
            yield answer

    def _best_of_kind(self, kind: Hashable) -> "_Aim":
        own = frozenset(p for p, o in self.open.items() if o.kind == kind)
        return _Aim(self.of_kind.get(kind, NONE), self._easy(own, EASY), EASIER, LOOKS, 1.0)

    def _easy(self, points: frozenset[Point], most: float) -> frozenset[Point]:
        """The points whose measurement takes at most this effort."""
        return frozenset(p for p in points if self.open[p].least.effort <= most)

    def _step(self, aim: "_Aim | None" = None) -> Iterator[Answer]:
        """The next measurement, if one is worth it; without an aim, for the best of all."""
        if aim is None:
            aim = _Aim(self.best, frozenset(self.open), 1.0, len(self.open))
        best = aim.best
        for _ in range(aim.looks + 1):
            open_ = {p: o for p, o in self.open.items() if p in aim.points and o.may_win(best)}
            if not open_:
                return
            likely = {p: self._estimate(o) for p, o in open_.items()}
            if best.share <= 1:
                doubt = SURE * max(self.wrong) if aim.doubt is None else aim.doubt
                likely = {p: w for p, w in likely.items() if w.may_win(best, doubt) and w.share <= MAY_FIT}
                if not likely:
                    return
            order = sorted(likely, key=lambda p: (likely[p].share > 1, *likely[p].with_effort(aim.hurry), p))
            if not self.unread:
                self.soon(True, [p for p in order if not self.open[p].is_near][:NEXT])
            point = order[0]
            if self.open[point].is_near:
                yield self._measure(point, likely[point])
                return
            self._look_nearer(point)

    def _look_nearer(self, point: Point) -> None:
        """Computes the nearer bound of a point; drops the point if it is invalid or cannot fit."""
        assert self.nearer is not None, "without one, every bound is the nearer one"
        opened, found = self.open[point], self.nearer(point)
        if found is None:
            del self.open[point]
            return
        least = opened.least
        found = Worth(max(found.cost, least.cost), max(found.share, least.share), least.effort, found.unit)
        expected = self.bounded.added(least, opened.bounded)
        self.bounded.add(point, found, least)
        if found.share > 1:
            del self.open[point]  # its neighbours are likely to be as large
        else:
            if opened.bounded:
                self.wrong.append(expected.cost / max(found.cost, TINY))
            opened.least, opened.is_near = found, True
        for other, waiting in self.open.items():
            if other[0] == point[0] and not waiting.is_near:
                waiting.see(waiting.bounded, point, opened.place)

    def _measure(self, point: Point, expected: Worth) -> Answer:
        found = self.measure(point)  # the point stays open if this raises
        opened = self.open.pop(point)
        if found is not None:
            if opened.measured:
                self.wrong.append(expected.cost / max(found.cost, TINY))
            self.measured.add(point, found, opened.least)
            if found.key < self.best.key:
                self.best, self.best_point = found, point
            self.of_kind[opened.kind] = min(self.of_kind.get(opened.kind, NONE), found, key=lambda w: w.key)
            for other, waiting in self.open.items():
                if other[0] == point[0]:
                    waiting.see(waiting.measured, point, opened.place)
        return Answer(point, found, self.least, self.left)

    def _estimate(self, point: _Open) -> Worth:
        """The likely cost and share of a point."""
        least = point.least if point.is_near else self.bounded.added(point.least, point.bounded)
        return self.measured.added(least, point.measured)


def _weight(distance: float) -> float:
    return 1 / (distance + 0.1) ** 2


def _distance(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def _place(point: Point) -> tuple[float, ...]:
    """The coordinates of a point: doubling a number is one step; 0, which turns something off, is far from all."""
    return tuple(math.log2(max(x, OFF)) for x in point[1:])


def _is_beside(a: Point, b: Point) -> bool:
    """Whether two points differ in one number, which is at most twice as large in one of them, or 0 and 1."""
    differ = [sorted(pair) for pair in zip(a, b, strict=True) if pair[0] != pair[1]]
    return len(differ) == 1 and differ[0][1] <= max(1, 2 * differ[0][0])


def _spread(points: Sequence[Point]) -> Iterator[Point]:
    """The first point, then all others in an order that puts neighbours far apart."""
    count = len(points)
    # The stride is about 0.618 of the count, and coprime to it: its multiples visit every point once, neighbours far
    # apart.
    stride = next((s for s in range(int(count * 0.618) or 1, count + 1) if math.gcd(s, count) == 1), 1)
    yield from (points[number * stride % count] for number in range(count))
