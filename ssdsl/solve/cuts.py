"""Cuts a row of layers into stages of a pipeline, and chooses the kind of devices for each stage.

A step of M micro-batches takes the seconds of all stages together, for the first of them, and M - 1 times those of the
slowest stage for the others. The answer is exact. For a bound t on the slowest stage a dynamic programme finds the
least sum: best(s, i, d), of the first s stages with the first i layers on d devices, is the least over the kinds k of
stage s and the j < i with which it begins,

    best(s - 1, j, d - devices(k)) + seconds(k, j..i),   where that is at most t and fits the memory.

As seconds are sums over layers, a window moves over j: O(layers) for each s, d and k. The least t is found by bisection
over the seconds of all runs of layers (as RaNNC and PipeDream do). Then t goes down from the largest value at which a
smaller sum could still make up for a slower stage (as Alpa's does over all t), each time below the slowest stage of the
last cut.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices on which a stage may run: their number, the seconds of each layer for one micro-batch (forward and
    backward), and per device the bytes of each layer's state, the bytes that a micro-batch of each layer keeps for
    backward, and the memory."""

    devices: int
    seconds: tuple[float, ...]
    state: tuple[float, ...]
    kept: tuple[float, ...]
    memory_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class LayerRow:
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


@dataclass(frozen=True, slots=True)
class StageCuts:
    """`starts[s]` is the first layer of stage s, `kinds[s]` its kind of devices; then the seconds of the step, and of
    the slowest stage for one micro-batch."""

    starts: tuple[int, ...]
    kinds: tuple[int, ...]
    step_s: float
    slowest_s: float


def cut(row: LayerRow) -> StageCuts | None:
    """The cut with the shortest step; None where no cut fits the memory and the number of devices."""
    table = _Table(row)
    shortest = table.solved(math.inf)
    if shortest is None:
        return None
    runs = table.runs()
    low, high = 0, len(runs) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if table.solved(runs[middle]) is not None else (middle + 1, high)
    best = table.solved(runs[low])
    assert best is not None, "the longest run is a bound that none exceeds"
    found: StageCuts | None = shortest
    least = shortest.step_s - (row.micro_batches - 1) * shortest.slowest_s  # no sum is smaller
    while found is not None:
        best = min(best, found, key=lambda c: c.step_s)
        number = bisect_left(runs, found.slowest_s) - 1  # below the slowest stage that was found
        if row.micro_batches > 1:
            number = min(number, bisect_right(runs, (best.step_s - least) / (row.micro_batches - 1)) - 1)
        found = table.solved(runs[number]) if number >= low else None
    return best


@dataclass(slots=True)
class _Best:
    """For each number of layers, the least sum of some stages, the start of the last of them, and its kind."""

    seconds: list[float]
    start: list[int]
    kind: list[int]


class _Table:
    """The dynamic programme, for one bound on the slowest stage at a time."""

    def __init__(self, row: LayerRow) -> None:
        self.row = row
        self.seconds = [[0.0, *accumulate(k.seconds)] for k in row.kinds]
        self.state = [[0.0, *accumulate(k.state)] for k in row.kinds]
        self.kept = [[0.0, *accumulate(k.kept)] for k in row.kinds]

    def runs(self) -> list[float]:
        """The seconds of all runs of layers on all kinds that a stage may have, ascending."""
        kinds = {k for stage in self.row.stages for k in stage}
        n = self.row.layers
        return sorted(
            {self.seconds[k][b] - self.seconds[k][a] for k in kinds for a in range(n) for b in range(a + 1, n + 1)}
        )

    def solved(self, bound: float) -> StageCuts | None:
        """The cut with the least sum whose slowest stage takes at most `bound`; None if there is none."""
        row, n = self.row, self.row.layers
        rows: list[dict[int, _Best]] = [{0: _Best([0.0] + [math.inf] * n, [0] * (n + 1), [0] * (n + 1))}]
        for s, allowed in enumerate(row.stages):
            here: dict[int, _Best] = {}
            for used, before in rows[-1].items():
                for k in allowed:
                    total = used + row.kinds[k].devices
                    if total <= row.devices:
                        if total not in here:
                            here[total] = _Best([math.inf] * (n + 1), [0] * (n + 1), [0] * (n + 1))
                        self._extend(before, here[total], s, k, bound)
            rows.append(here)
        if row.devices not in rows[-1] or rows[-1][row.devices].seconds[n] == math.inf:
            return None
        return self._cut(rows)

    def _extend(self, before: _Best, here: _Best, stage: int, kind: int, bound: float) -> None:
        """Adds one more stage: for each end, the feasible start with the least sum before it."""
        seconds = self.seconds[kind]
        # With running sums, seconds(start..end) = seconds[end] - seconds[start]: the best start for every end has the
        # least before[start] - seconds[start].
        window: deque[tuple[float, int]] = deque()  # (before[start] - seconds[start], start), ascending
        first = 0
        for end in range(1, self.row.layers + 1):
            start = end - 1
            if before.seconds[start] < math.inf:
                value = before.seconds[start] - seconds[start]
                while window and window[-1][0] >= value:
                    window.pop()
                window.append((value, start))
            while first < end and not self._fits(stage, kind, first, end, bound):
                first += 1
            while window and window[0][1] < first:
                window.popleft()
            if window and window[0][0] + seconds[end] < here.seconds[end]:
                here.seconds[end] = window[0][0] + seconds[end]
                here.start[end], here.kind[end] = window[0][1], kind

    def _fits(self, stage: int, kind: int, start: int, end: int, most: float) -> bool:
        held = self.state[kind][end] - self.state[kind][start]
        held += self.row.in_flight[stage] * (self.kept[kind][end] - self.kept[kind][start])
        return self.seconds[kind][end] - self.seconds[kind][start] <= most and held <= self.row.kinds[kind].memory_bytes

    def _cut(self, rows: Sequence[dict[int, _Best]]) -> StageCuts:
        stages = list(self._stages(rows))[::-1]
        times = [self.seconds[k][b] - self.seconds[k][a] for a, b, k in stages]
        step = sum(times) + (self.row.micro_batches - 1) * max(times)
        return StageCuts(tuple(a for a, _, _ in stages), tuple(k for _, _, k in stages), step, max(times))

    def _stages(self, rows: Sequence[dict[int, _Best]]) -> Iterator[tuple[int, int, int]]:
        """The start, end and kind of each stage, the last stage first."""
        devices, end = self.row.devices, self.row.layers
        for best in reversed(rows[1:]):
            start, kind = best[devices].start[end], best[devices].kind[end]
            yield start, end, kind
            devices, end = devices - self.row.kinds[kind].devices, start
