"""Finds orders of pipelines with two stages on each device, laid out as a V: three numbers per device, and one for all.

Device d runs `ahead[d]` forwards of its first stage before the first forward of its second; then one of each in turn,
until micro-batches come back; then in turn forward, backward and weights of its first stage, and of its second. As the
pipeline empties, gradients of weights wait: those of the first stage come `late[d]` rounds later for the last `tail`
micro-batches, those of the second stage come after all backwards for the last `last[d]`. The clock is in `row`.

ZB-V is ahead = 2 (p - 1 - d) + 1, late = last = d and tail = p (Qi et al. 2023): no bubble where all tasks take equally
long, with the memory of 1F1B. Where the gradients of weights take less than the rest, more of them may wait, as memory
allows.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ssdsl.record import Record
from ssdsl.solve.pipeline import BACKWARD, FORWARD, WEIGHTS, Pipeline, Task, descent, run

EFFORT = 5_000_000  # tasks that are placed at most, by default

# changes of a device's three numbers
STEPS = (
    *((0, 1, 0), (0, 0, 1), (0, -1, 0), (0, 0, -1), (1, 0, 0), (-1, 0, 0)),
    *((0, 1, -1), (0, -1, 1), (0, 2, 0), (0, 0, 2)),
)

Numbers = tuple[list[int], list[int], list[int], int]  # ahead, late, last and tail


class Vee(Record):
    """The numbers of a V, the seconds of a step, and the longest time between the first start and the last end on a
    device."""

    ahead: tuple[int, ...]
    late: tuple[int, ...]
    last: tuple[int, ...]
    tail: int
    step_s: float
    span_s: float
    spans_s: float  # the sum over all devices
    longest: int  # the device with the longest span


def vee(pipeline: Pipeline, effort: int = EFFORT, whole_step: bool = False) -> Iterator[Vee]:
    """Better and better orders within the memory, by the longest span or, with `whole_step`, by the step. Ends when no
    change of numbers is better, or when `effort` tasks were placed."""

    @lru_cache(maxsize=4 * pipeline.devices)
    def fitting(device: int, ahead: int, late: int, last: int, tail: int) -> list[Task] | None:
        tasks = row(pipeline.devices, pipeline.micro_batches, device, ahead, late, last, tail)
        return tasks if _peak(pipeline, tasks) <= pipeline.memory[device] * (1 + 1e-9) else None

    def scheduled(numbers: Numbers) -> Vee | None:
        ahead, late, last, tail = numbers
        rows = []
        for d in reversed(range(pipeline.devices)):
            if (tasks := fitting(d, ahead[d], late[d], last[d], tail)) is None:
                return None
            rows.append(tasks)
        if (spans := run(pipeline, rows[::-1])) is None:
            return None
        found = spans.step_s, spans.span_s, spans.spans_s, spans.longest
        return Vee(tuple(ahead), tuple(late), tuple(last), tail, *found)

    def changes(best: Vee) -> Iterator[Numbers]:
        return _changes(pipeline, best)

    return descent(pipeline, _starts(pipeline), changes, scheduled, effort, whole_step)


def row(devices: int, micro_batches: int, device: int, ahead: int, late: int, last: int, tail: int) -> list[Task]:
    """The tasks of a device in order."""
    down, up, tasks = device, 2 * devices - 1 - device, list[tuple[float, int, int, int]]()
    # Times for sorting: micro-batch k has 6 k to 6 k + 5, for F, B and W of the first stage (0, 1, 2), then of the
    # second (3, 4, 5). The forwards ahead come just after those of the second stage (3.5).
    for k in range(micro_batches):
        back = 6 * (k - devices + device)
        tasks += (
            (6 * (k - ahead - devices) + 3.5 if k < ahead + device else 6 * (k - ahead - device), FORWARD, down, k),
            (6 * k + 1, BACKWARD, down, k),
            (6 * (k + (late if k >= micro_batches - tail else 0)) + 2, WEIGHTS, down, k),
            (6 * (k - devices) + 3, FORWARD, up, k),
            (back + 4, BACKWARD, up, k),
            (back + 5 if k < micro_batches - last else 6 * micro_batches, WEIGHTS, up, k),
        )
    tasks.sort()
    return [(kind, s, k) for _, kind, s, k in tasks]


def _peak(pipeline: Pipeline, tasks: Sequence[Task]) -> float:
    """The largest memory that a device holds, in micro-batches of both its stages."""
    # a forward of one of the two stages adds half a micro-batch; its backward frees all of that but the share `kept`
    changes = 0.5, -0.5 * (1 - pipeline.kept), -0.5 * pipeline.kept  # by kind: FORWARD, BACKWARD, WEIGHTS
    held = peak = 0.0
    for kind, _, _ in tasks:
        held += changes[kind]
        peak = max(peak, held)
    return peak


def _starts(pipeline: Pipeline) -> Iterator[Numbers]:
    """Numbers to start from: ZB-V, and variants of it. `ahead` may also hide the way to the second stage of a device
    with messages; gradients of weights may wait longer."""
    p, m = pipeline.devices, pipeline.micro_batches
    fewer = max(0, 2 * p - 1 - m)  # as many micro-batches are missing to fill a V
    plain = [2 * (p - 1 - d) + 1 for d in range(p)]
    yield plain, [*range(p)], [max(0, min(m, d - fewer)) for d in range(p)], max(0, p - fewer)
    hidden = [1 + round(_way(pipeline, d) / pipeline.forward[d]) for d in range(p)]
    for ahead in (plain, hidden):
        for tail in (p, 2 * p, 3 * p):
            for more in (1.0, 2.0, 1.5, 0.5):
                for still in (1.5, 1.0, 2.0):
                    late = [min(m, round(more * d)) for d in range(p)]
                    last = [min(m, tail, round(still * d)) for d in range(p)]
                    yield ahead, late, last, min(m, tail)


def _way(pipeline: Pipeline, device: int) -> float:
    """The seconds from the end of a forward on the first stage of a device to the start of the same on its second."""
    between = range(device + 1, 2 * pipeline.devices - 1 - device)
    return sum(pipeline.forward[s] for s in between) + sum(pipeline.travel(s) for s in (device, *between))


def _changes(pipeline: Pipeline, best: Vee) -> Iterator[Numbers]:
    """Changes of one device's numbers, or of those of a run of devices, by one or two; devices near the longest come
    first."""
    p, m = pipeline.devices, pipeline.micro_batches
    near = sorted(range(p), key=lambda d: (abs(d - best.longest), d))
    runs = [(0, p), *((d, d + 1) for d in near), *((d, p) for d in near), *((0, d + 1) for d in near)]
    for start, end in dict.fromkeys(runs):
        for more, later, still in STEPS:
            ahead, late, last = (list(numbers) for numbers in (best.ahead, best.late, best.last))
            for d in range(start, end):
                ahead[d] = max(1, ahead[d] + more)
                late[d], last[d] = (max(0, min(m, n)) for n in (late[d] + later, last[d] + still))
            yield ahead, late, last, best.tail
    for tail in (best.tail + 1, best.tail - 1, best.tail + p // 2, best.tail - p // 2):
        yield list(best.ahead), list(best.late), list(best.last), max(0, min(m, tail))
