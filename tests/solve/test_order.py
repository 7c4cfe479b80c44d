"""Orders of pipelines by two numbers a stage: against enumeration, published rates and the bound."""

import random
from itertools import product

import pytest

from ssdsl.solve.order import Pipeline, Schedule, order, scheduled


def even(p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, memory: float) -> Pipeline:
    forward, backward, weights = times
    return Pipeline((forward,) * p, (backward,) * p, (weights,) * p, transfer, m, kept, (memory,) * p)


def best(pipeline: Pipeline) -> Schedule:
    *_, found = order(pipeline)
    return found


# stages, micro-batches, TF, TB, TW, Tcomm, w and the bubble of ZB-2p: Qi et al. 2023 (arXiv 2401.10241), tables 3 and 5
@pytest.mark.parametrize(
    ("p", "m", "times", "transfer", "kept", "rate"),
    [
        (8, 24, (18.522, 18.086, 9.337), 0.601, 0.366, 0.0433),
        (16, 64, (11.307, 11.254, 8.101), 0.379, 0.432, 0.0054),
    ],
)
def test_zero_bubble_with_memory_for_twice_as_many(
    p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, rate: float
) -> None:
    pipeline = even(p, m, times, transfer, kept, 2 * p)
    assert round(best(pipeline).bubble(pipeline), 4) <= rate


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
            assert found.step_s >= pipeline.least - 1e-9
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
