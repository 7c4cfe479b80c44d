"""The grid's solver against the enumeration of made-up problems, and what it promises on the way."""

import math
import random
import statistics
from itertools import product

import pytest

from ssdsl.solve.grid import Answer, Grid, Point, Worth

TRIES = 100


class Problem:
    """Parallel training in a few numbers: arithmetic that widths share, traffic that they cause, a pipeline's bubble,
    kernels that are worse when they are small, memory that widths and micro-batches save. The bound knows the
    arithmetic and the bubble only."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.devices = 2 ** rng.randint(4, 9)
        self.batch = 2 ** rng.randint(5, 10)
        self.wide, self.deep = 2 ** rng.randint(2, 5), 2 ** rng.randint(3, 6)
        self.work = rng.uniform(0.3, 3) * self.devices
        self.slow = {n: rng.uniform(0.001, 1.0) for n in "dts"}
        self.small, self.state, self.kept = rng.uniform(0, 0.02), rng.uniform(0.2, 8), rng.uniform(0.1, 4)
        self.points = [
            (0, d, t, s, m)
            for d, t, s in product(self.divisors(self.devices), repeat=3)
            if d * t * s == self.devices and t <= self.wide and s <= self.deep and d <= self.batch
            for m in self.divisors(self.batch // d)
        ]
        rng.shuffle(self.points)

    @staticmethod
    def divisors(number: int) -> list[int]:
        return [2**n for n in range(number.bit_length())]

    def bound(self, point: Point) -> Worth:
        _, _, t, s, m = point
        return Worth(self.work / self.devices * (1 + (s - 1) / m), self.state / (t * s))

    def value(self, point: Point) -> Worth:
        _, d, t, s, m = point
        least = self.bound(point)
        kernels = 1 + self.small * t * m * d / self.batch * 8
        traffic = self.slow["d"] * (d - 1) / d / t / s + self.slow["t"] * (t - 1) * (2 if t > 8 else 1) / 4
        cost = least.cost * kernels + traffic + self.slow["s"] * 0.05 * (s > 1) * m / 8
        return Worth(cost, least.share + self.kept * min(m, s) / m / t / s + 0.01)

    def nearer(self, point: Point) -> Worth:
        """Knows the traffic as well, and a micro-batch's memory."""
        _, _, t, s, m = point
        value = self.value(point)
        return Worth(value.cost * (0.9 + 0.1 * self.slow["d"]), self.bound(point).share + self.kept / m / t / s)


class SlowLinks(Problem):
    """Traffic takes many times as long."""

    def __init__(self, seed: int, times: float) -> None:
        super().__init__(seed)
        self.slow = {axis: times * seconds for axis, seconds in self.slow.items()}

    def nearer(self, point: Point) -> Worth:
        least, value = self.bound(point), self.value(point)
        _, _, t, s, m = point
        return Worth(least.cost + 0.98 * (value.cost - least.cost), least.share + self.kept / m / t / s)


def solved(problem: Problem, nearer: bool = False) -> list[Answer]:
    found = []
    for answer in Grid(problem.bound, problem.value, nearer=problem.nearer if nearer else None).answers(problem.points):
        found.append(answer)
        if len(found) == TRIES:
            break
    return found


def best(values: list[Worth]) -> float:
    return min((w.cost for w in values if w.share <= 1), default=math.inf)


@pytest.mark.parametrize("nearer", [False, True])
def test_it_finds_what_enumeration_finds(nearer: bool) -> None:
    gaps, measured = [], []
    for seed in range(60):
        problem = Problem(seed)
        truth = best([problem.value(p) for p in problem.points])
        answers = solved(problem, nearer)
        assert len(answers) <= TRIES
        measured.append(len(answers))
        if math.isfinite(truth):
            gaps.append(best([a.worth for a in answers if a.worth]) / truth)
    assert len(gaps) > 40
    assert not nearer or statistics.median(measured) <= 12
    assert statistics.median(gaps) == 1.0
    assert max(gaps) <= 1.05


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("times", "every"), [(10, 3), (10, 1), (200, 1)])
def test_it_finds_the_best_where_most_of_a_step_is_traffic(times: float, every: int) -> None:
    """Then a bound by arithmetic says little: what it leaves out is a sum more often than a factor."""
    gaps = []
    for seed in range(0, 120, every):
        problem = SlowLinks(seed, times)
        truth = best([problem.value(p) for p in problem.points])
        gaps.append(best([a.worth for a in solved(problem, nearer=True) if a.worth]) / truth)
    assert statistics.median(gaps) == 1.0
    assert sum(gap > 1.05 for gap in gaps) <= 1  # with factors alone 4 and 13


def test_it_measures_far_fewer_than_there_are() -> None:
    shares = [len(solved(p)) / len(p.points) for p in map(Problem, range(60)) if len(p.points) > 100]
    assert len(shares) > 10
    assert statistics.median(shares) < 0.35


@pytest.mark.parametrize("seed", range(8))
def test_what_it_says_of_the_rest_is_true(seed: int) -> None:
    problem = Problem(seed)
    measured: set[Point] = set()
    for answer in solved(problem):
        measured.add(answer.point)
        now = best([problem.value(p) for p in measured])
        rest = [w for p in problem.points if p not in measured and (w := problem.value(p)).share <= 1]
        if len(measured) > 2:  # all bounds are known
            assert all(w.cost >= min(answer.bound, now) for w in rest)


def test_the_first_point_is_measured_first_and_answers_are_the_same_again() -> None:
    problem = Problem(3)
    first = [a.point for a in solved(problem)]
    assert first[0] == problem.points[0]
    assert first == [a.point for a in solved(problem)]


def test_of_equal_points_the_first_is_measured() -> None:
    """Nearer bounds are what is measured, so after one of these points no other one is better."""
    points = [(0, n) for n in range(1, 40)]

    def value(point: Point) -> Worth:
        return Worth(1.2 if point[1] == 1 else 1.0)

    measured = [a.point for a in Grid(lambda point: Worth(0.5), value, nearer=value).answers(points)]
    assert measured[1] != (0, 2) and (0, 2) in measured and len(measured) <= 5


def test_what_is_no_point_is_left_out() -> None:
    points = [(0, n) for n in range(1, 9)]

    def bound(point: Point) -> Worth | None:
        return None if point[1] % 2 else Worth(1.0)

    def measure(point: Point) -> Worth | None:
        return None if point[1] == 2 else Worth(float(point[1]))

    answers = list(Grid(bound, measure).answers(points))
    assert best([a.worth for a in answers if a.worth]) == 4.0
    assert [a.worth for a in answers if a.point[1] == 2] == [None]
    assert all(a.point[1] % 2 == 0 for a in answers)


def test_what_takes_long_to_measure_is_put_off_and_not_forgotten() -> None:
    """The best is the hardest to measure, and the easy ones that come before it are hopeless."""
    points = [(0, 2**n) for n in range(8)]
    costs = {**dict.fromkeys(points, 400.0), points[0]: 100.0, points[-1]: 60.0}
    least = {**dict.fromkeys(points, 90.0), points[0]: 25.0, points[-1]: 12.0}

    def bound(point: Point) -> Worth:
        return Worth(least[point], 0.0, 9.0 if point == points[-1] else 0.0)

    assert points[-1] in {a.point for a in Grid(bound, lambda point: Worth(costs[point])).answers(points)}


def test_memory_that_a_bound_leaves_out_is_added_and_hides_no_solution() -> None:
    """With recomputation (`again` = 2) a bound has little memory and a layer's scratch is many times as much; without,
    the same scratch is little beside what the bound has."""

    def nearer(point: Point) -> Worth:
        _, again, parts = point
        return Worth(again + parts / 100, 0.06 if again == 2 else 0.66)

    def value(point: Point) -> Worth:
        found = nearer(point)
        return Worth(found.cost * 1.001, found.share + (0.4 if point[1] == 2 else 0.2))

    points = [(0, again, parts) for again in (2, 1) for parts in (1, 2, 4, 8)]
    found = list(Grid(lambda point: Worth(0.5, 0.03), value, nearer=nearer).answers(points))
    assert min((a.worth for a in found if a.worth), key=lambda w: w.key) == value((0, 1, 1))


def test_what_a_bound_counts_once_is_expected_as_often_as_a_measurement_shows() -> None:
    """A device keeps 8 micro-batches at once, and a bound counts one: the first measurement says so, and the next is
    the first point that fits, the cheapest of them."""

    def unit(point: Point) -> float:
        return 4 / point[1]

    def bound(point: Point) -> Worth:
        return Worth(90 + point[1] / 10, 0.2, unit=unit(point))

    def value(point: Point) -> Worth:
        return Worth(100 + point[1] / 10, 0.2 + 8 * unit(point))

    points = [(0, 2**n) for n in range(3, 10)]
    measured = [a.point for a in Grid(bound, value).answers(points)]
    assert measured[:2] == [(0, 8), (0, 64)]


def test_a_neighbour_of_the_best_is_measured_though_others_were_worse_than_their_bounds() -> None:
    """All points but one take a fifth more than their bounds; that one is beside the best of the others."""
    points = [(0, 2**i, 2**j) for i in range(6) for j in range(6)]
    bounds = {point: 1 + 0.001 * n for n, point in enumerate(points[:30])} | dict.fromkeys(points[30:], 1.3)
    odd = (0, 1, 2)
    bounds[odd] = 1.15
    grid = Grid(lambda p: Worth(bounds[p]), lambda p: Worth(bounds[p] * (1 if p == odd else 1.2)))
    answers = {answer.point for answer in grid.answers(points)}
    assert odd in answers and grid.best_point == odd and grid.best.cost == 1.15


def test_a_share_that_is_taken_because_it_is_there_says_nothing_of_others() -> None:
    """The first point has no solution, and takes five times what there is."""
    shares = {(0, 1): (1.0, 0.9, 5.0), (0, 64): (10.0, 0.3, 0.5), (0, 2): (2.0, 0.9, 0.95)}  # cost, bound, measured

    def best(takes_what_is_there: bool) -> tuple[int, ...] | None:
        def measure(point: tuple[int, ...]) -> Worth:
            cost, _, share = shares[point]
            return Worth(cost, share, takes_what_is_there=takes_what_is_there)

        grid = Grid(lambda p: Worth(shares[p][0], shares[p][1], unit=0.01), measure)
        list(grid.answers(list(shares)))
        return grid.best_point

    assert best(True) == (0, 2) and best(False) == (0, 64)


def test_a_nearer_bound_without_room_says_so_of_its_neighbours() -> None:
    """Without recomputation (`again` = 1) a micro-batch keeps a hundred times as much as with it, and costs less."""
    points = [(0, again, 2**n) for again in (2, 1) for n in range(9)]
    looked = list[Point]()

    def bound(point: Point) -> Worth:
        return Worth(100 + 30 * (point[1] == 2) + point[2] / 100, 0.1, unit=1 / point[2])

    def nearer(point: Point) -> Worth:
        looked.append(point)
        least = bound(point)
        return Worth(least.cost + 1, 0.1 + (200 if point[1] == 1 else 0.5) * least.unit, unit=least.unit)

    def value(point: Point) -> Worth:
        least = nearer(point)
        looked.pop()
        return Worth(least.cost * 1.01, least.share)

    assert all(nearer(point).share > 1 for point in points if point[1] == 1 and point[2] < 256)
    looked.clear()
    answers = list(Grid(bound, value, nearer=nearer).answers(points))
    assert best([a.worth for a in answers if a.worth]) == best([value(p) for p in points])
    assert sum(nearer(p).share > 1 for p in set(looked)) <= 3
