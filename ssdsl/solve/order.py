"""Finds an order of forwards, backwards and gradients of weights for the stages of a pipeline: two numbers per stage.

Stage s runs `ahead[s]` forwards before its first backward, then one forward for each backward. A micro-batch's gradient
of weights comes `late[s]` backwards after its own backward. As a clock (k counts micro-batches):

    F[k] at 3 k,   B[k] at 3 (k + ahead - 1) + 1,   W[k] at 3 (k + ahead - 1 + late) + 2

1F1B is ahead = p - s; ZB-H1 adds late = s; ZB-H2 is ahead = 2 (p - s) - 1 and late = 2 s (Qi et al. 2023). The length
of a schedule is that of its longest path. The search is a descent from such families within the memory. Schedules of
equal length may take very different memory: a second descent, `lighter`, lowers it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ssdsl.record import Record
from ssdsl.solve.pipeline import BACKWARD, FORWARD, WEIGHTS, Pipeline, Task, descent, run

EFFORT = 6_000_000  # tasks that are placed at most, by default
SAME = 0.001  # of a step: no difference that counts

Numbers = tuple[list[int], list[int]]  # ahead and late


class Schedule(Record):
    """Two numbers per stage, the seconds of a step, and the longest time between the first start and the last end of a
    stage."""

    ahead: tuple[int, ...]
    late: tuple[int, ...]
    step_s: float
    span_s: float
    spans_s: float  # the sum over all stages
    longest: int  # the stage with the longest span

    def bubble(self, pipeline: Pipeline) -> float:
        """The bubble rate of the Zero Bubble paper: the share of the longest span in which its stage does not
        compute."""
        return pipeline.bubble(self.span_s)


def order(pipeline: Pipeline, effort: int = EFFORT, whole_step: bool = False) -> Iterator[Schedule]:
    """Better and better schedules within the memory, by the longest span or, with `whole_step`, by the step. Ends when
    no change of one number, or of the numbers of a run of stages, is better, or when `effort` tasks were placed."""

    def changes(best: Schedule) -> Iterator[Numbers]:
        return _changes(pipeline, best)

    starts = _starts(pipeline)
    return descent(pipeline, starts, changes, lambda numbers: scheduled(pipeline, *numbers), effort, whole_step)


def lighter(pipeline: Pipeline, found: Schedule, effort: int = EFFORT) -> Iterator[Schedule]:
    """Schedules that take less and less memory, and no longer step than this one: first of the families, then by
    smaller numbers. Ends like `order`."""
    left = max(1, effort // (3 * pipeline.stages * pipeline.micro_batches))  # schedules that may be tried
    longest = found.step_s * (1 + SAME)

    def smaller(best: Schedule, numbers: Iterable[Numbers]) -> Iterator[Schedule]:
        nonlocal left
        for ahead, late in numbers:
            if left and _held(pipeline, ahead, late) < _held(pipeline, best.ahead, best.late):
                left -= 1
                tried = scheduled(pipeline, ahead, late)
                if tried is not None and tried.step_s <= longest:
                    yield tried

    best, families = found, _starts(pipeline)
    while better := next(smaller(best, chain(families, _smaller(pipeline, best))), None):
        best = better
        yield best


def _held(pipeline: Pipeline, ahead: Sequence[int], late: Sequence[int]) -> tuple[float, float]:
    """The largest share of its memory that a stage takes, and the sum of these shares over all stages."""
    shares = [_peak(pipeline, *own) / most for *own, most in zip(ahead, late, pipeline.memory, strict=True)]
    return max(shares), sum(shares)


def _smaller(pipeline: Pipeline, best: Schedule) -> Iterator[Numbers]:
    """Smaller numbers for all stages or a run of them, large changes first; stages that take most memory come first."""
    p = pipeline.stages
    fullest = sorted(range(p), key=lambda s: -_peak(pipeline, best.ahead[s], best.late[s]) / pipeline.memory[s])
    for share in (0.5, 0.75, 0.9):
        yield [max(1, round(share * n)) for n in best.ahead], [round(share * n) for n in best.late]
    for start, end in [(0, p), *((s, s + 1) for s in fullest), *((0, s + 1) for s in fullest)]:
        for fewer, sooner in ((0, 4), (4, 0), (1, 1), (0, 1), (1, 0), (2, -1), (-1, 2)):
            ahead, late = list(best.ahead), list(best.late)
            for s in range(start, end):
                ahead[s], late[s] = max(1, ahead[s] - fewer), max(0, late[s] - sooner)
            yield ahead, late


def _starts(pipeline: Pipeline) -> Iterator[Numbers]:
    """Schedules to start from: families of the papers, and mixtures of them.

    Forwards in flight are in proportion to the number that hides the first micro-batch's way down and back, or fewer
    where memory bounds a stage. Gradients of weights are late enough to fill the time at the end in which a stage has
    only backwards.
    """
    p, m = pipeline.stages, pipeline.micro_batches
    hidden, most = _hidden(pipeline), [max(1, min(m, int(room + 1e-9))) for room in pipeline.memory]
    share = min((1.0, *((n - 1) / more for n, more in zip(most, hidden, strict=True) if more > 0)))
    slope = sum(pipeline.forward) / max(sum(pipeline.weights), 1e-12)  # so many W take as long as an F
    lines = *((share, n) for n in (0.5, 0.25, 0.75, 0.0, 1.0)), (1.0, 0.0), (0.75 * share, 0.0), (0.5, 0.0)
    for part, less in lines:
        ahead = [max(1, min(n, math.ceil(1 + part * h - less - 1e-9))) for n, h in zip(most, hidden, strict=True)]
        latest = [_latest(pipeline, s, a) for s, a in enumerate(ahead)]
        for rise in (1.1, 1.0, 1.2, 1.3, 0.5):
            risen = [round(rise * slope * (ahead[0] - a)) for a in ahead]
            for first in sorted({0, latest[0]}):
                yield ahead, [max(0, min(n, first + r)) for n, r in zip(latest, risen, strict=True)]
        yield ahead, latest
        yield ahead, [0] * p


def _hidden(pipeline: Pipeline) -> list[float]:
    """For each stage, the number of further forwards that it can run while the first micro-batch is on its way down and
    back."""
    found, way = list[float](), 0.0
    for s in reversed(range(pipeline.stages)):
        found.append(way / max(*pipeline.forward[: s + 1], 1e-12))
        way += pipeline.forward[s] + pipeline.backward[s] + 2 * pipeline.transfer
    return found[::-1]


def _latest(pipeline: Pipeline, stage: int, ahead: int) -> int:
    """The largest `late` of a stage that memory allows beside so many forwards."""
    room, most = pipeline.memory[stage] - ahead, pipeline.micro_batches
    if room >= most * pipeline.kept:
        return most
    return max(0, int(room / pipeline.kept))


def _changes(pipeline: Pipeline, best: Schedule) -> Iterator[Numbers]:
    """Changes of one number, or of those of a run of stages, by one or two; stages near the longest one come first."""
    p, most = pipeline.stages, pipeline.micro_batches
    near = sorted(range(p), key=lambda s: (abs(s - best.longest), s))
    runs = [(s, s + 1) for s in near] + [(s, p) for s in near] + [(0, s + 1) for s in near]
    for start, end in runs:
        for more, later in ((0, 1), (0, -1), (0, 2), (0, -2), (-1, 1), (1, -1), (-1, 2), (1, -2), (1, 0), (-1, 0)):
            ahead, late = list(best.ahead), list(best.late)
            for s in range(start, end):
                ahead[s] = max(1, min(most, ahead[s] + more))
                late[s] = max(0, min(late[s] + later, _latest(pipeline, s, ahead[s])))
            if (ahead, late) != (list(best.ahead), list(best.late)):
                yield ahead, late


def scheduled(pipeline: Pipeline, ahead: Sequence[int], late: Sequence[int]) -> Schedule | None:
    """The schedule with two numbers per stage; None if it takes too much memory, or stages wait for each other."""
    if any(_peak(pipeline, a, b) > most + 1e-9 for a, b, most in zip(ahead, late, pipeline.memory, strict=True)):
        return None
    spans = run(
        pipeline, [_row(s, pipeline.micro_batches, *numbers) for s, numbers in enumerate(zip(ahead, late, strict=True))]
    )
    if spans is None:
        return None
    return Schedule(tuple(ahead), tuple(late), spans.step_s, spans.span_s, spans.spans_s, spans.longest)


def _row(stage: int, micro_batches: int, ahead: int, late: int) -> list[Task]:
    """The tasks of a stage in order."""
    tasks = []
    for k in range(micro_batches):
        tasks.append((3 * k, FORWARD, stage, k))
        tasks.append((3 * (k + ahead - 1) + 1, BACKWARD, stage, k))
        tasks.append((3 * (k + ahead - 1 + late) + 2, WEIGHTS, stage, k))
    tasks.sort()
    return [(kind, s, k) for _, kind, s, k in tasks]


def _peak(pipeline: Pipeline, ahead: int, late: int) -> float:
    """The most that a stage holds: micro-batches whose backward has not run, and what gradients of weights wait for."""
    m = pipeline.micro_batches
    return min(ahead, m) + pipeline.kept * min(late, max(0, m - ahead + 1), m)
