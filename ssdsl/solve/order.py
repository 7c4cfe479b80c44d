"""In which order the stages of a pipeline run forwards, backwards and gradients of weights: two whole numbers a stage.

Stage s runs `ahead[s]` forwards before its first backward, then one forward for each backward; the gradient of weights
of a micro-batch comes `late[s]` backwards behind its own. As a clock (k counts micro-batches):

    F[k] at 3 k,   B[k] at 3 (k + ahead - 1) + 1,   W[k] at 3 (k + ahead - 1 + late) + 2

1F1B is ahead = p - s; ZB-H1 is that with late = s, ZB-H2 ahead = 2 (p - s) - 1 and late = 2 s (Qi et al. 2023). The
length of a schedule is that of its longest path; the search is a descent from such families under a bound on memory.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

EFFORT = 8_000_000  # tasks that are placed at most, by default


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in a row, each on a device of its own: seconds of a micro-batch's forward, backward and gradients of
    weights, and of a message between neighbours. A forward takes the memory 1, of which its backward gives back all but
    `kept`, and the gradients of weights the rest; `memory` is what each stage may hold."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    transfer: float
    micro_batches: int
    kept: float
    memory: tuple[float, ...]

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.forward)

    @property
    def busy(self) -> float:
        """Seconds of the stage that computes longest: no step is shorter."""
        works = zip(self.forward, self.backward, self.weights, strict=True)
        return self.micro_batches * max(map(sum, works))

    @property
    def hidden(self) -> list[float]:
        """Of each stage, how many more forwards it runs while the first micro-batch is on its way down and back."""
        found, way = list[float](), 0.0
        for s in reversed(range(self.stages)):
            found.append(way / max(*self.forward[: s + 1], 1e-12))
            way += self.forward[s] + self.backward[s] + 2 * self.transfer
        return found[::-1]

    @property
    def least_span(self) -> float:
        """No order has a shorter one: until its first micro-batch has come back, a stage runs no more forwards than the
        memory has room for."""
        found, way = 0.0, 0.0
        for s in reversed(range(self.stages)):
            forward, backward, room = self.forward[s], self.backward[s], max(1, int(self.memory[s] + 1e-9))
            idle = max(0.0, way - (min(room, self.micro_batches) - 1) * forward)
            found = max(found, self.micro_batches * (forward + backward + self.weights[s]) + idle)
            way += forward + backward + 2 * self.transfer
        return found

    @property
    def least(self) -> float:
        """No order has a shorter step: a stage begins when one micro-batch has come to it, and its last backward is
        followed by those of the stages before it."""
        found, before = 0.0, 0.0
        for forward, backward, weights in zip(self.forward, self.backward, self.weights, strict=True):
            both = self.micro_batches * (forward + backward)
            found = max(found, before + both, both + self.micro_batches * weights)
            before += forward + backward + 2 * self.transfer
        return found


@dataclass(frozen=True, slots=True)
class Schedule:
    """Two numbers a stage, with the seconds of a step, and those between the first start and the last end of the stage
    for which that is longest."""

    ahead: tuple[int, ...]
    late: tuple[int, ...]
    step_s: float
    span_s: float
    spans_s: float  # of all stages together
    longest: int  # the stage whose span that is

    def bubble(self, pipeline: Pipeline) -> float:
        """Zero Bubble's rate: the share of the longest span in which its stage does not compute."""
        return 1 - pipeline.busy / self.span_s


def order(pipeline: Pipeline, effort: int = EFFORT) -> Iterator[Schedule]:
    """Better and better schedules within the memory; each is better than those before it. It ends where no change of
    one number, nor of those of a run of stages, is better, or when it has placed `effort` tasks."""
    left = max(1, effort // (3 * pipeline.stages * pipeline.micro_batches))  # schedules that may be tried
    best: Schedule | None = None
    for start in islice(_starts(pipeline), left):
        left -= 1
        if (found := scheduled(pipeline, *start)) is not None and (best is None or _key(found) < _key(best)):
            best = found
            yield best
    while best is not None and best.span_s > pipeline.least_span * (1 + 1e-9):
        better = None
        for change in islice(_changes(pipeline, best), left):
            left -= 1
            if (found := scheduled(pipeline, *change)) is not None and _key(found) < _key(best):
                better = found
                yield better
                break
        best = better


def _key(found: Schedule) -> tuple[float, float]:
    return found.span_s, found.spans_s


def _starts(pipeline: Pipeline) -> Iterator[tuple[list[int], list[int]]]:
    """Families of the papers, and what lies between them: forwards in flight in proportion to what hides the way of the
    first micro-batch down and back, or to less where the memory bounds one of the stages; gradients of weights as late
    as fill the time in which, at the end, a stage has backwards alone."""
    p, m = pipeline.stages, pipeline.micro_batches
    hidden, most = pipeline.hidden, [max(1, min(m, int(room + 1e-9))) for room in pipeline.memory]
    share = min((1.0, *((n - 1) / more for n, more in zip(most, hidden, strict=True) if more > 0)))
    slope = sum(pipeline.forward) / max(sum(pipeline.weights), 1e-12)  # of late: so many take as long as a forward
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


def _latest(pipeline: Pipeline, stage: int, ahead: int) -> int:
    """How late gradients of weights of a stage may come beside so many forwards."""
    room, most = pipeline.memory[stage] - ahead, pipeline.micro_batches
    if room >= most * pipeline.kept:
        return most
    return max(0, int(room / pipeline.kept))


def _changes(pipeline: Pipeline, best: Schedule) -> Iterator[tuple[list[int], list[int]]]:
    """One number, or those of a run of stages, one or two more or fewer; those near to the longest stage come first."""
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
    """The schedule of two numbers a stage; None where it takes too much memory, or where stages wait for each other."""
    p, m = pipeline.stages, pipeline.micro_batches
    if any(_peak(pipeline, a, b) > most + 1e-9 for a, b, most in zip(ahead, late, pipeline.memory, strict=True)):
        return None
    rows = [_row(m, a, b) for a, b in zip(ahead, late, strict=True)]
    at, now, first = [0] * p, [0.0] * p, [-1.0] * p
    forward = [[-1.0] * m for _ in range(p)]  # when each has ended
    backward = [[-1.0] * m for _ in range(p)]
    seconds, transfer = (pipeline.forward, pipeline.backward, pipeline.weights), pipeline.transfer
    waiting = list(range(p - 1, -1, -1))
    while waiting:
        s = waiting.pop()
        row, place, time, moved = rows[s], at[s], now[s], False
        above, below = forward[s - 1] if s else None, backward[s + 1] if s + 1 < p else None
        while place < len(row):
            kind, k = row[place]
            if kind == 0 and above is not None:
                if (arrived := above[k]) < 0:
                    break
                time = max(time, arrived + transfer)
            elif kind == 1:
                arrived = forward[s][k] if below is None else below[k] + transfer if below[k] >= 0 else -1.0
                if arrived < 0:
                    break
                time = max(time, arrived)
            if first[s] < 0:
                first[s] = time
            time += seconds[kind][s]
            if kind < 2:
                (forward, backward)[kind][s][k] = time
            place, moved = place + 1, True
        at[s], now[s] = place, time
        if moved:
            waiting += [n for n in (s - 1, s + 1) if 0 <= n < p and at[n] < len(rows[n]) and n not in waiting]
    if any(place < len(row) for place, row in zip(at, rows, strict=True)):
        return None
    spans = [end - start for start, end in zip(first, now, strict=True)]
    return Schedule(tuple(ahead), tuple(late), max(now), max(spans), sum(spans), spans.index(max(spans)))


def _row(micro_batches: int, ahead: int, late: int) -> list[tuple[int, int]]:
    """The tasks of a stage in order, forwards (0), backwards (1) and gradients of weights (2), each with its number."""
    tasks = []
    for k in range(micro_batches):
        tasks.append((3 * k, 0, k))
        tasks.append((3 * (k + ahead - 1) + 1, 1, k))
        tasks.append((3 * (k + ahead - 1 + late) + 2, 2, k))
    tasks.sort()
    return [(kind, k) for _, kind, k in tasks]


def _peak(pipeline: Pipeline, ahead: int, late: int) -> float:
    """What a stage holds at most: micro-batches whose backward has not run, and what gradients of weights wait for."""
    m = pipeline.micro_batches
    return min(ahead, m) + pipeline.kept * min(late, max(0, m - ahead + 1), m)
