"""A pipeline with one or two stages on each device: the seconds of an order of its tasks, and the search among orders.

An order is a row of tasks for each device; a task begins when its device is free and its inputs have arrived.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from ssdsl.record import Record

FORWARD, BACKWARD, WEIGHTS = range(3)  # the kinds of tasks; BACKWARD computes gradients of inputs only
Task = tuple[int, int, int]  # kind, stage, micro-batch


class Pipeline(Record):
    """Stages in a row: the seconds of a micro-batch's forward, backward and gradients of weights on each, and of a
    message between neighbours. Each stage has its own device, or two are on each device, laid out as a V: stages s and
    2 p - 1 - s.

    A micro-batch takes 1 unit of a device's memory, in equal parts in the forwards of its stages. The backward frees
    all but the share `kept`, the gradients of weights free the rest. `memory` is what each device may hold, in these
    units.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    transfer: float
    micro_batches: int
    kept: float
    memory: tuple[float, ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.forward)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.memory)

    def device(self, stage: int) -> int:
        """The device of a stage."""
        return min(stage, 2 * self.devices - 1 - stage)

    def own(self, device: int) -> tuple[int, ...]:
        """The stages of a device."""
        return (device,) if self.stages == self.devices else (device, 2 * self.devices - 1 - device)

    def travel(self, stage: int) -> float:
        """The seconds of a message between a stage and the next one; 0 if there is none, or both are on one device."""
        is_between = stage + 1 < self.stages and self.device(stage) != self.device(stage + 1)
        return self.transfer if is_between else 0.0

    @property
    def busy(self) -> float:
        """The seconds of the device that computes longest: a lower bound on every step."""
        return self.micro_batches * max(
            sum(self.forward[s] + self.backward[s] + self.weights[s] for s in self.own(d)) for d in range(self.devices)
        )

    @property
    def least(self) -> float:
        """A lower bound on the seconds of a step: a device begins when one micro-batch has come to it, and after its
        last backward come those of the stages before it."""
        found, before = 0.0, 0.0
        for d in range(self.devices):
            both = self.micro_batches * sum(self.forward[s] + self.backward[s] for s in self.own(d))
            weights = self.micro_batches * sum(self.weights[s] for s in self.own(d))
            # Gradients of weights may fill gaps, so the first bound leaves them out; the second is all work of the
            # device.
            found = max(found, before + both, both + weights)
            before += self.forward[d] + self.backward[d] + 2 * self.transfer
        return found

    @property
    def least_span(self) -> float:
        """A lower bound on the longest span: until its first micro-batch has come back, a device can run only as many
        forwards as memory allows."""
        found, chunks = self.busy, self.stages // self.devices
        for d in range(self.devices):
            own = self.own(d)
            room = max(1, min(chunks * self.micro_batches, int(chunks * self.memory[d] + 1e-9)))
            way = sum(self.forward[s] for s in range(d + 1, self.stages)) + sum(self.backward[own[-1] + 1 :])
            way += sum(self.travel(s) for s in range(d, self.stages))
            way += sum(self.travel(s) for s in range(own[-1], self.stages))
            # The way of the first micro-batch beyond this device, less the forwards that may run meanwhile.
            idle = max(0.0, way - (room - 1) * max(self.forward[s] for s in own))
            work = sum(self.forward[s] + self.backward[s] + self.weights[s] for s in own)
            found = max(found, self.micro_batches * work + idle)
        return found

    def bubble(self, span_s: float) -> float:
        """The bubble rate of the Zero Bubble paper: the share of the longest span in which its device does not
        compute."""
        return 1 - self.busy / span_s


class Spans(Record):
    """The seconds of a step, and the longest time between the first start and the last end on a device."""

    step_s: float
    span_s: float
    spans_s: float  # the sum over all devices
    longest: int  # the device with the longest span


def run(pipeline: Pipeline, rows: Sequence[Sequence[Task]]) -> Spans | None:
    """The seconds of an order, by its longest path; None if devices wait for each other."""
    devices, m, last = pipeline.devices, pipeline.micro_batches, pipeline.stages - 1
    at, now, first = [0] * devices, [0.0] * devices, [-1.0] * devices
    forward = [[-1.0] * m for _ in range(pipeline.stages)]  # when each has ended
    backward = [[-1.0] * m for _ in range(pipeline.stages)]
    seconds, travel = (pipeline.forward, pipeline.backward, pipeline.weights), [*map(pipeline.travel, range(last + 1))]
    waiting = list(range(devices - 1, -1, -1))
    while waiting:
        d = waiting.pop()
        row, place, time, moved = rows[d], at[d], now[d], False
        while place < len(row):
            kind, s, k = row[place]
            if kind == FORWARD and s:
                if (arrived := forward[s - 1][k]) < 0:
                    break
                if arrived + travel[s - 1] > time:
                    time = arrived + travel[s - 1]
            elif kind == BACKWARD:
                if (arrived := forward[s][k] if s == last else backward[s + 1][k]) < 0:
                    break
                if arrived + travel[s] > time:
                    time = arrived + travel[s]
            if first[d] < 0:
                first[d] = time
            time += seconds[kind][s]
            if kind == FORWARD:
                forward[s][k] = time
            elif kind == BACKWARD:
                backward[s][k] = time
            place, moved = place + 1, True
        at[d], now[d] = place, time
        if moved:
            waiting += [n for n in (d - 1, d + 1) if 0 <= n < devices and at[n] < len(rows[n]) and n not in waiting]
    if any(place < len(row) for place, row in zip(at, rows, strict=True)):
        return None
    spans = [end - start for start, end in zip(first, now, strict=True)]
    return Spans(max(now), max(spans), sum(spans), spans.index(max(spans)))


class TimedOrder(Protocol):
    """An order with its seconds."""

    @property
    def step_s(self) -> float: ...

    @property
    def span_s(self) -> float: ...

    @property
    def spans_s(self) -> float: ...


Numbers = TypeVar("Numbers")
Found = TypeVar("Found", bound=TimedOrder)


def descent(
    pipeline: Pipeline,
    starts: Iterator[Numbers],
    changes: Callable[[Found], Iterator[Numbers]],
    scheduled: Callable[[Numbers], Found | None],
    effort: int,
    whole_step: bool = False,
) -> Iterator[Found]:
    """Better and better orders of a family, from the best of its starts on: by the longest span or, with `whole_step`,
    by the step. Ends when no change is better, when the lower bound is reached, or when `effort` tasks were placed."""
    left = max(1, effort // (3 * pipeline.stages * pipeline.micro_batches))  # orders that may be tried
    least = pipeline.least if whole_step else pipeline.least_span
    best: Found | None = None

    def length(found: Found) -> float:
        return found.step_s if whole_step else found.span_s

    def better(numbers: Iterator[Numbers]) -> Iterator[Found]:
        nonlocal left
        for each in islice(numbers, left):
            left -= 1
            found = scheduled(each)
            if found is not None and (best is None or (length(found), found.spans_s) < (length(best), best.spans_s)):
                yield found

    for best in better(starts):
        yield best
    while best is not None and length(best) > least * (1 + 1e-9):
        best = next(better(changes(best)), None)
        if best is not None:
            yield best
