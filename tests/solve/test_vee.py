"""Orders of two stages a device in a V: against ZB-V's clock, the memory and the bound."""

import random

import pytest

from ssdsl.solve.pipeline import BACKWARD, FORWARD, WEIGHTS, Pipeline, Task, run
from ssdsl.solve.vee import Vee, row, vee
from tests.solve.test_order import ROWS


def even(p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, memory: float) -> Pipeline:
    """A device takes these times for both of its stages."""
    forward, backward, weights = ((seconds / 2,) * 2 * p for seconds in times)
    return Pipeline(forward, backward, weights, transfer, m, kept, (memory,) * p)


def best(pipeline: Pipeline, effort: int = 1_000_000) -> Vee:
    *_, found = vee(pipeline, effort)
    return found


def zb_v(p: int, m: int) -> list[list[Task]]:
    """As `stdlib/pipeline.ssp` has it."""
    rows = []
    for d in range(p):
        up, most, tasks = 2 * p - 1 - d, max(m, 2 * p - 1), list[tuple[float, int, int, int]]()
        for k in range(m):
            tasks.append((6 * (k - up) - (6 * (p - d) - 4 if k < up else 0), FORWARD, d, k))
            tasks.append((6 * k + 1, BACKWARD, d, k))
            tasks.append((6 * k + 2 + (6 * d if k >= most - p else 0), WEIGHTS, d, k))
            tasks.append((6 * (k - p) + 3, FORWARD, up, k))
            tasks.append((6 * (k - p + d) + 4, BACKWARD, up, k))
            tasks.append((6 * (k - p + d) + 5 if k < most - d else 6 * most, WEIGHTS, up, k))
        rows.append([(kind, s, k) for _, kind, s, k in sorted(tasks, key=lambda task: task[0])])
    return rows


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("p", "m", "times", "transfer", "kept", "rate"), ROWS)
def test_it_is_no_longer_than_zb_v_in_its_memory(
    p: int, m: int, times: tuple[float, float, float], transfer: float, kept: float, rate: float
) -> None:
    pipeline = even(p, m, times, transfer, kept, p)
    known = run(pipeline, zb_v(p, m))
    assert known is not None and best(pipeline).span_s < 0.9999 * known.span_s


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (4, 3), (4, 6), (4, 7), (4, 16), (8, 8)])
def test_zb_v_is_a_point_of_the_family(p: int, m: int) -> None:
    pipeline = even(p, m, (1, 1, 1), 0.0, 0.5, p)
    known, first = run(pipeline, zb_v(p, m)), next(vee(pipeline))
    assert known is not None and first.span_s == pytest.approx(known.span_s)
    if m >= 2 * p - 1:
        assert first.span_s == pytest.approx(3 * m) == pipeline.least_span  # no bubble


def test_more_memory_has_less_of_a_bubble() -> None:
    p, m, times, transfer, kept, _ = ROWS[0]
    bubbles = [
        (pipeline := even(p, m, times, transfer, kept, n * p)).bubble(best(pipeline).span_s) for n in (1, 1.25, 1.5)
    ]
    assert bubbles[0] <= 0.0703 and bubbles[1] <= 0.047 and bubbles[2] <= 0.0334


def test_unlike_stages() -> None:
    """The memory is never exceeded, and no span is below the bound."""
    rng = random.Random(2)
    for _ in range(12):
        p, m = rng.choice((2, 3, 4)), rng.choice((4, 8, 12))
        times = [tuple(rng.uniform(0.3, 0.7) for _ in range(2 * p)) for _ in range(3)]
        memory = tuple(p * rng.uniform(1, 2) for _ in range(p))
        pipeline = Pipeline(*times, rng.choice((0.0, 0.1)), m, rng.choice((0.4, 1.0)), memory)  # type: ignore[arg-type]
        spans = [found.span_s for found in vee(pipeline, 100_000)]
        found = best(pipeline, 100_000)
        assert spans == sorted(spans, reverse=True) and spans[-1] == found.span_s >= pipeline.least_span - 1e-9
        assert found.step_s >= pipeline.least - 1e-9
        for d, numbers in enumerate(zip(found.ahead, found.late, found.last, strict=True)):
            held = 0.0
            for kind, _, _ in row(p, m, d, *numbers, found.tail):
                held += (0.5, -0.5 * (1 - pipeline.kept), -0.5 * pipeline.kept)[kind]
                assert held <= memory[d] + 1e-6


def test_what_does_not_fit_has_no_order() -> None:
    assert not [*vee(even(4, 8, (1, 1, 1), 0.0, 0.5, 2))]
