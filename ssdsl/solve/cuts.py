"""Cuts a row of layers into stages of a pipeline, and chooses the kind of devices for each stage.

A stage begins when the first of M micro-batches has passed the stages before it, and computes M of them. It also waits
for the first one to come back from the later stages, for as long as the forwards that it may run meanwhile do not fill
that time. A step takes the longest of these times:

    step = max over stages s of   t(0..s-1) + M t(s) + max(0, t(s+1..) - (in_flight(s) - 1) forward(s))

A stage that holds all micro-batches at once runs all forwards first, and hides nothing.

The answer is exact. For a bound T on the step and a number A, a dynamic programme finds the least sum of the seconds of
all stages: best(s, i, d), of the first s stages with the first i layers on d devices, is the least over the kinds k of
stage s and the j < i with which it begins,

    best(s - 1, j, d - devices(k)) + seconds(k, j..i),

where no stage takes the step beyond T if all stages together take A, and the layers fit the memory. If the sum is at
most A, the step is at most T. Else A grows to the sum, which is the least that it can be. Then T is found by bisection,
as RaNNC, PipeDream and Alpa do for the time of the slowest stage. An end of a stage is left out if more work remains
than the other devices can do within T.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ssdsl.record import Record

EXACT = 1e-10  # of a step: where the search for a shorter one ends
NEAR = 0.001  # of a step: so near to the least, a bound just below the best cut is tried as well


class DeviceKind(Record):
    """Devices on which a stage may run: their number, the seconds of each layer for one micro-batch (forward and
    backward) and those of its forward alone; per device the bytes of each layer's state, the bytes that a micro-batch
    of each layer keeps for backward, and the memory.

    `behind` are the numbers of devices of all stages before it with which such devices follow; None: any.
    """

    devices: int
    seconds: tuple[float, ...]
    forward: tuple[float, ...]
    state: tuple[float, ...]
    kept: tuple[float, ...]
    memory_bytes: float = math.inf
    behind: frozenset[int] | None = None


class LayerRow(Record):
    """Layers in a row, and the stages to cut them into. `stages[s]` are the numbers of the kinds that stage s may have,
    `in_flight[s]` the micro-batches that it holds at once. All stages together have exactly `devices`."""

    kinds: tuple[DeviceKind, ...]
    stages: tuple[tuple[int, ...], ...]
    in_flight: tuple[int | float, ...]
    devices: int
    micro_batches: int

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.kinds[0].seconds)

    def hidden(self, stage: int) -> float:
        """The forwards of a stage that run while the first micro-batch is in the stages after it."""
        held = self.in_flight[stage]
        return 0.0 if held >= self.micro_batches else max(0.0, held - 1)

    def step_s(self, starts: Sequence[int], kinds: Sequence[int]) -> float:
        """The seconds of a step of stages that begin at these layers, on these kinds of devices."""
        stages = [*zip(kinds, starts, (*starts[1:], self.layers), strict=True)]
        times = [sum(self.kinds[k].seconds[a:b]) for k, a, b in stages]
        step, before, total = 0.0, 0.0, sum(times)
        for s, ((k, a, b), each) in enumerate(zip(stages, times, strict=True)):
            idle = total - before - each - self.hidden(s) * sum(self.kinds[k].forward[a:b])
            step = max(step, before + self.micro_batches * each + max(0.0, idle))
            before += each
        return step


class StageCuts(Record):
    """`starts[s]` is the first layer of stage s, `kinds[s]` its kind of devices; then the seconds of the step."""

    starts: tuple[int, ...]
    kinds: tuple[int, ...]
    step_s: float


def cut(row: LayerRow) -> StageCuts | None:
    """The cut with the shortest step; None if no cut fits the memory and the number of devices."""
    table = _Table(row)
    best, low = table.within(math.inf), row.micro_batches * table.work[-1] / row.devices
    while best is not None and best.step_s - low > EXACT * best.step_s:
        middle = (low + best.step_s) / 2
        if (found := table.within(middle)) is None:
            low = middle
        else:
            best = found
        if best.step_s - low < NEAR * best.step_s:
            if (found := table.within(best.step_s * (1 - EXACT))) is None:
                break
            best = found
    return best


@dataclass(slots=True)
class _Best:
    """For each number of layers, the least sum of some stages, the start of the last of them, and its kind."""

    seconds: list[float]
    start: list[int]
    kind: list[int]


class _Table:
    """The dynamic programme, for one bound on the step at a time."""

    def __init__(self, row: LayerRow) -> None:
        self.row = row
        self.seconds = [[0.0, *accumulate(k.seconds)] for k in row.kinds]
        self.forward = [[0.0, *accumulate(k.forward)] for k in row.kinds]
        self.state = [[0.0, *accumulate(k.state)] for k in row.kinds]
        self.kept = [[0.0, *accumulate(k.kept)] for k in row.kinds]
        most = [min(k.devices * k.seconds[n] for k in row.kinds) for n in range(row.layers)]
        self.work = [0.0, *accumulate(most)]  # the least device-seconds of the first layers
        sizes = [[row.kinds[k].devices for k in stage] for stage in reversed(row.stages)]
        self.least = [0, *accumulate(map(min, sizes))][::-1]  # devices that the stages from each on have at least
        self.most = [0, *accumulate(map(max, sizes))][::-1]

    def within(self, most_s: float) -> StageCuts | None:
        """A cut whose step takes at most so long; None if there is none."""
        total = 0.0
        while (found := self._solved(most_s, total)) is not None:
            cut, sum_s = found
            if sum_s <= total or most_s == math.inf:
                return cut
            total = sum_s
        return None

    def _solved(self, most_s: float, total_s: float) -> tuple[StageCuts, float] | None:
        """The cut with the least sum, and that sum, where no stage takes longer than `most_s` if all together take
        `total_s`; None if there is none."""
        row, n, least, most = self.row, self.row.layers, self.least, self.most
        rows: list[dict[int, _Best]] = [{0: _Best([0.0] + [math.inf] * n, [0] * (n + 1), [0] * (n + 1))}]
        for s, allowed in enumerate(row.stages):
            here: dict[int, _Best] = {}
            for used, before in rows[-1].items():
                for k in allowed:
                    kind = row.kinds[k]
                    total = used + kind.devices
                    if least[s + 1] <= row.devices - total <= most[s + 1] and (
                        kind.behind is None or used in kind.behind
                    ):
                        if total not in here:
                            here[total] = _Best([math.inf] * (n + 1), [0] * (n + 1), [0] * (n + 1))
                        self._extend(before, here[total], s, k, self._first_end(s, total, most_s), most_s, total_s)
            rows.append(here)
        if row.devices not in rows[-1] or rows[-1][row.devices].seconds[n] == math.inf:
            return None
        return self._cut(rows), rows[-1][row.devices].seconds[n]

    def _first_end(self, stage: int, used: int, most_s: float) -> int:
        """The least end of a stage behind which no more work is left than the other devices can do."""
        left = (self.row.devices - used) * most_s / self.row.micro_batches
        if left == math.inf or not left:
            return stage + 1 if left else self.row.layers
        return max(stage + 1, bisect_left(self.work, self.work[-1] - left * (1 + EXACT)))

    def _extend(
        self, before: _Best, here: _Best, stage: int, kind: int, first_end: int, most_s: float, total_s: float
    ) -> None:
        """Adds one more stage: for each end from the first on, the feasible start with the least sum before it."""
        seconds, forward, sums = self.seconds[kind], self.forward[kind], before.seconds
        state, kept, room = self.state[kind], self.kept[kind], self.row.kinds[kind].memory_bytes
        held, hidden, count = self.row.in_flight[stage], self.row.hidden(stage), self.row.micro_batches
        longest = most_s / count
        for end in range(first_end, self.row.layers + 2 - len(self.row.stages) + stage):
            for start in range(end - 1, stage - 1, -1):
                each = seconds[end] - seconds[start]
                if each > longest or state[end] - state[start] + held * (kept[end] - kept[start]) > room:
                    break  # more layers take longer, and more memory
                through = sums[start] + each
                if through < here.seconds[end] and through <= most_s - (count - 1) * each:
                    idle = total_s - hidden * (forward[end] - forward[start])
                    if idle + (count - 1) * each <= most_s:
                        here.seconds[end], here.start[end], here.kind[end] = through, start, kind

    def _cut(self, rows: Sequence[dict[int, _Best]]) -> StageCuts:
        stages = list(self._stages(rows))[::-1]
        starts, kinds = tuple(start for start, _ in stages), tuple(kind for _, kind in stages)
        return StageCuts(starts, kinds, self.row.step_s(starts, kinds))

    def _stages(self, rows: Sequence[dict[int, _Best]]) -> Iterator[tuple[int, int]]:
        """The start and the kind of each stage, the last stage first."""
        devices, end = self.row.devices, self.row.layers
        for best in reversed(rows[1:]):
            start, kind = best[devices].start[end], best[devices].kind[end]
            yield start, kind
            devices, end = devices - self.row.kinds[kind].devices, start
