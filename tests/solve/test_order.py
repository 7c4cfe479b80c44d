"""Orders of pipelines by two numbers a stage: against enumeration, published rates and the bound."""

import random
from itertools import product

import pytest

from ssdsl.solve.order import EFFORT, SAME, Schedule, lighter, order, scheduled
from ssdsl.solve.pipeline import Pipeline


def even(p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, memory: float) -> Pipeline:
    forward, backward, weights = times
    return Pipeline((forward,) * p, (backward,) * p, (weights,) * p, transfer, m, kept, (memory,) * p)


def best(pipeline: Pipeline, effort: int = EFFORT) -> Schedule:
    *_, found = order(pipeline, effort)
    return found


# stages, micro-batches, TF, TB, TW, Tcomm, w and the bubble of ZB-2p: Qi et al. 2023 (arXiv 2401.10241), tables 3 and 5
# (rows 1, 8 and 12 stand in bench/results/schedules.md, the others were written down from memory)
ROWS = [
    (8, 24, (18.522, 18.086, 9.337), 0.601, 0.366, 0.0433),
    (8, 32, (18.513, 18.086, 9.331), 0.626, 0.366, 0.0039),
    (8, 64, (18.546, 18.097, 9.321), 0.762, 0.366, 0.0026),
    (8, 24, (29.718, 29.444, 19.927), 0.527, 0.432, 0.0029),
    (8, 32, (29.802, 29.428, 19.530), 0.577, 0.432, 0.0022),
    (8, 64, (29.935, 29.621, 19.388), 0.535, 0.432, 0.0010),
    (16, 48, (11.347, 11.248, 8.132), 0.377, 0.432, 0.0066),
    (16, 64, (11.307, 11.254, 8.101), 0.379, 0.432, 0.0054),
    (16, 128, (11.325, 11.308, 8.109), 0.378, 0.432, 0.0028),
    (32, 96, (10.419, 10.207, 7.715), 0.408, 0.432, 0.0038),
    (32, 128, (10.408, 10.204, 7.703), 0.408, 0.432, 0.0029),
    (32, 256, (10.402, 10.248, 7.698), 0.460, 0.432, 0.0018),
]


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("p", "m", "times", "transfer", "kept", "rate"), ROWS)
def test_zero_bubble_with_memory_for_twice_as_many(
    p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, rate: float
) -> None:
    pipeline = even(p, m, times, transfer, kept, 2 * p)
    assert round(best(pipeline, 400_000).bubble(pipeline), 4) <= rate


def test_the_last_row_is_the_least_that_the_memory_allows() -> None:
    """64 forwards end before the first micro-batch has come back to the first of 32 stages."""
    p, m, times, transfer, kept, _ = ROWS[-1]
    pipeline = even(p, m, times, transfer, kept, 2 * p)
    forward, backward, _ = times
    idle = (p - 1) * (forward + backward + 2 * transfer) - (2 * p - 1) * forward
    assert best(pipeline).span_s == pytest.approx(pipeline.busy + idle)


@pytest.mark.parametrize("memory", [48, 64, 96])
def test_more_memory_is_no_longer(memory: int) -> None:
    """Also where some of it is of no use."""
    pipeline = even(16, 48, (11.347, 11.248, 8.132), 0.377, 0.432, memory)
    assert best(pipeline, 400_000).bubble(pipeline) <= 0.0045


def test_handcrafted_schedules_are_points_of_the_family() -> None:
    p, m = 4, 8
    pipeline = even(p, m, (1, 1, 1), 0.0, 0.5, 100)
    one_f_one_b = scheduled(pipeline, [p - s for s in range(p)], [0] * p)
    zb_h1 = scheduled(pipeline, [p - s for s in range(p)], [*range(p)])
    zb_h2 = scheduled(pipeline, [2 * (p - s) - 1 for s in range(p)], [2 * s for s in range(p)])
    assert one_f_one_b and zb_h1 and zb_h2
    assert one_f_one_b.step_s == 3 * m + (p - 1) * 2  # a micro-batch has come down and gone back
    assert zb_h1.span_s == 3 * m + p - 1  # (p - 1) (F + B - W)
    assert zb_h2.span_s == 3 * m


@pytest.mark.parametrize("seed", range(6))
def test_it_is_near_to_enumeration(seed: int) -> None:
    """Every pair of numbers of every stage."""
    rng = random.Random(seed)
    p, m = 3, rng.randint(3, 4)
    times = [tuple(rng.choice((1.0, 1.5, 2.0)) for _ in range(p)) for _ in range(3)]
    memory = tuple(float(rng.randint(2, 5)) for _ in range(p))
    pipeline = Pipeline(*times, rng.choice((0.0, 0.3)), m, 0.5, memory)  # type: ignore[arg-type]
    spans = []
    for numbers in product(product(range(1, m + 1), repeat=p), product(range(m), repeat=p)):
        if (found := scheduled(pipeline, *numbers)) is not None:
            assert found.step_s >= pipeline.least - 1e-9 and found.span_s >= pipeline.least_span - 1e-9
            spans.append(found.span_s)
    assert best(pipeline).span_s <= 1.05 * min(spans)


def test_memory_is_never_exceeded() -> None:
    pipeline = even(4, 12, (1, 1, 1), 0.1, 0.5, 3)
    found = best(pipeline)
    assert all(a + 0.5 * n <= 3 or a == 1 for a, n in zip(found.ahead, found.late, strict=True))
    assert scheduled(pipeline, [4, 3, 2, 1], [0, 0, 0, 0]) is None


def test_effort_ends_it_and_each_answer_is_better() -> None:
    pipeline = even(8, 24, (1, 1.1, 0.7), 0.1, 0.5, 12)
    spans = [s.span_s for s in order(pipeline, 200_000)]
    assert spans == sorted(spans, reverse=True)
    assert len([*order(pipeline, 1)]) == 1
    assert [*order(pipeline, 100_000)] == [*order(pipeline, 100_000)]


def test_zb_h1_is_as_fast_as_what_takes_twice_its_memory() -> None:
    """A step begins on the first stage and ends on the last one, so a shorter span of the first makes it no shorter."""
    pipeline = even(4, 32, (1, 1, 1), 0.0, 1.0, 38)
    *_, fastest = order(pipeline, whole_step=True)
    *_, found = lighter(pipeline, fastest)
    assert (found.ahead, found.late) == ((4, 3, 2, 1), (0, 1, 2, 3))
    assert found.step_s == fastest.step_s == best(pipeline).step_s


@pytest.mark.parametrize("seed", range(6))
def test_a_lighter_order_is_no_longer(seed: int) -> None:
    rng = random.Random(seed)
    p = rng.choice((2, 4, 8))
    times = [tuple(rng.choice((1.0, 1.1, 1.3)) for _ in range(p)) for _ in range(3)]
    memory = tuple(rng.uniform(p, 3 * p) for _ in range(p))
    pipeline = Pipeline(*times, rng.choice((0.0, 0.1)), 4 * p, rng.choice((0.5, 1.0)), memory)  # type: ignore[arg-type]
    *_, fastest = order(pipeline, 400_000, whole_step=True)
    assert fastest.step_s <= best(pipeline, 400_000).step_s + 1e-9
    *_, found = (fastest, *lighter(pipeline, fastest, 400_000))
    assert found.step_s <= fastest.step_s * (1 + SAME)
    assert fullest(pipeline, found) <= fullest(pipeline, fastest) + 1e-9


def fullest(pipeline: Pipeline, found: Schedule) -> float:
    """The share of its memory that the fullest stage takes, where it has many micro-batches."""
    rows = zip(found.ahead, found.late, pipeline.memory, strict=True)
    return max((ahead + pipeline.kept * late) / most for ahead, late, most in rows)
