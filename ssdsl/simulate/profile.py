"""A profile: what operators, communication and the engine take on one machine, whatever the plan.

It is measured (docs/profiles.md), and knows a program's instructions by their words (`kernel_key`). What it has no time
for it says: nothing is guessed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean

VERSION = 1
IN_A_TASK = "{} in a task"  # a kind of communication from when a rank comes till all are done: it waits for others
PHASES = ("forward", "backward", "dgrad", "wgrad")
# Times that grow with bytes: of a gradient that is a weight's first in the step, of one that is added to it; of what a
# flat parameter is copied, beside what travels, when its gradient is reduced, or it is gathered or scattered in ZeRO-3,
# and of giving back the memory of what was gathered for a section; of the optimizer. And what the engine takes for a
# task, which grows with the instructions of its function.
GROWING = (
    *("first gradient", "next gradient", "reduce", "gather", "drop", "scatter", "update"),
    *(f"task {phase}" for phase in PHASES),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a profile was recorded: ranks are `processes` with so many `threads` each, on so many `cores`."""

    device: str
    torch: str
    threads: int
    cores: int
    processes: int

    @property
    def sharing(self) -> float:
        """How many ranks share a core."""
        return max(1.0, self.processes / self.cores)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size, in the order of sizes; between two sizes, on the line between them.

    >>> Curve.of([(10, 1.0), (10, 3.0), (30, 4.0)]).points
    ((10, 2.0), (30, 4.0))
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> "Curve":
        """The mean of each size."""
        found: dict[int, list[float]] = {}
        for size, time_s in points:
            found.setdefault(size, []).append(time_s)
        return cls(tuple((size, mean(times)) for size, times in sorted(found.items())))

    def covers(self, size: int) -> bool:
        """Whether a size lies between the smallest and the largest, or beside one of them."""
        return self.points[0][0] / 2 <= size <= 2 * self.points[-1][0]

    def growing(self, size: int) -> float:
        """Outside of the sizes, in proportion to the nearest: of passes over memory.

        >>> Curve(((10, 2.0), (30, 4.0))).growing(5), Curve(((10, 2.0), (30, 4.0))).growing(20)
        (1.0, 3.0)
        """
        (least, first), (most, last) = self.points[0], self.points[-1]
        if size < least:
            return first * size / least if least else first
        if size > most:
            return last * size / most if most else last
        return self._between(size)

    def reaching(self, size: int) -> float:
        """Outside of the sizes, a latency and a bandwidth: that of the smallest is the latency, and the slope between
        the two largest goes on.

        >>> Curve(((10, 2.0), (30, 4.0))).reaching(5), Curve(((10, 2.0), (30, 4.0))).reaching(50)
        (2.0, 6.0)
        """
        (least, first), (most, last) = self.points[0], self.points[-1]
        if size <= least or len(self.points) == 1:
            return first
        if size <= most:
            return self._between(size)
        before, earlier = self.points[-2]
        return last + (size - most) * max(0.0, last - earlier) / (most - before)

    def _between(self, size: int) -> float:
        at = bisect_left(self.points, (size, 0.0))
        if at < len(self.points) and self.points[at][0] == size:
            return self.points[at][1]
        (low, below), (high, above) = next(p for p in pairwise(self.points) if p[0][0] < size < p[1][0])
        return below + (above - below) * (size - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds. `operators`: of each phase of an instruction, by its words; `network`: of a kind of communication among
    so many ranks, by bytes, alone and IN_A_TASK; `growing`: one curve for each of GROWING; `step_s`: of a step beside
    its tasks. `sources` says which runs it is from."""

    machine: Machine
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    network: Mapping[tuple[str, int], Curve] = field(default_factory=dict)
    growing: Mapping[str, Curve] = field(default_factory=dict)
    step_s: float = 0.0
    sources: tuple[str, ...] = ()


def merged(profiles: Iterable[Profile]) -> Profile:
    """One of several of the same machine: a time that several have is the mean."""
    found = tuple(profiles)
    words = {key: None for p in found for key in p.operators}
    operators = {
        key: {
            phase: mean(times)
            for phase in PHASES
            if (times := [t[phase] for p in found if phase in (t := p.operators.get(key, {}))])
        }
        for key in words
    }
    kinds = {key: None for p in found for key in p.network}
    network = {k: Curve.of(x for p in found if k in p.network for x in p.network[k].points) for k in kinds}
    names = [name for name in GROWING if any(name in p.growing for p in found)]
    growing = {n: Curve.of(x for p in found if n in p.growing for x in p.growing[n].points) for n in names}
    sources = tuple(dict.fromkeys(s for p in found for s in p.sources))
    most = max((p.machine for p in found), key=lambda m: m.processes)
    return Profile(most, operators, network, growing, mean(p.step_s for p in found), sources)
