"""A profile: the times of operators, communication and the engine on one machine, for any plan.

It is measured (docs/profiles.md), and looks a program's instructions up by their words (`kernel_key`). It reports
instructions without a time, and guesses nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Annotated

from msgspec import Meta

from ssdsl.record import Record, field, replace

IN_A_TASK = "{} in a task"  # a kind of communication within tasks: its time includes waiting for the other ranks
PHASES = ("forward", "backward", "dgrad", "wgrad")
# Times that grow with bytes: the first gradient of a weight in the step, and the next ones, which are added to it; the
# copies, beside the communication, when the gradient of a flat parameter is reduced, or when ZeRO-3 gathers or scatters
# it; freeing the memory that was gathered for a section; the optimizer. And the engine's time for a task, which grows
# with the number of instructions in its function.
GROWING = (
    *("first gradient", "next gradient", "reduce", "gather", "drop", "scatter", "update"),
    *(f"task {phase}" for phase in PHASES),
)


Count = Annotated[int, Meta(ge=1)]


class ProfiledMachine(Record):
    """The machine on which a profile was recorded: `processes` ranks with `threads` threads each, on `cores` cores."""

    device: str
    torch: str
    threads: Count
    cores: Count
    processes: Count

    @property
    def sharing(self) -> float:
        """The number of ranks that share a core, at least 1."""
        return max(1.0, self.processes / self.cores)


class Curve(Record):
    """Seconds by size, in the order of sizes; between two sizes they are interpolated linearly.

    >>> Curve.of([(10, 1.0), (10, 3.0), (30, 4.0)]).points
    ((10, 2.0), (30, 4.0))
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]], middle: Callable[[list[float]], float] = mean) -> "Curve":
        """The curve through these points; of several times of one size it has the mean, or another `middle`."""
        found: dict[int, list[float]] = {}
        for size, time_s in points:
            found.setdefault(size, []).append(time_s)
        return cls(tuple((size, middle(times)) for size, times in sorted(found.items())))

    def covers(self, size: int) -> bool:
        """Whether a size lies between half the smallest and twice the largest one."""
        return self.points[0][0] / 2 <= size <= 2 * self.points[-1][0]

    def growing(self, size: int) -> float:
        """The seconds for a size, for passes over memory: outside the known sizes in proportion to the nearest one.

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
        """The seconds for a size, for communication with a latency and a bandwidth: below the known sizes the time of
        the smallest, above them along the line through the two largest.

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

    @property
    def empty_s(self) -> float:
        """The seconds that do not grow with the size, for communication with a latency and a bandwidth: on the line
        through the two smallest sizes, at most the time of the smallest; 0 where one size alone is known.

        >>> Curve(((10, 2.0), (30, 4.0))).empty_s
        1.0
        """
        if len(self.points) == 1:
            return 0.0
        (least, first), (more, second) = self.points[:2]
        return min(first, max(0.0, first - least * (second - first) / (more - least)))

    def _between(self, size: int) -> float:
        at = bisect_left(self.points, (size, 0.0))
        if at < len(self.points) and self.points[at][0] == size:
            return self.points[at][1]
        (low, below), (high, above) = next(p for p in pairwise(self.points) if p[0][0] < size < p[1][0])
        return below + (above - below) * (size - low) / (high - low)


class Profile(Record):
    """Times in seconds. `operators`: by an instruction's words, those of its phases. `network`: by kind of
    communication and number of ranks, a curve over bytes, alone and IN_A_TASK. `growing`: a curve for each of GROWING.
    `step_s`: the time of a step outside its tasks. `sources` are the recorded runs. `calls`: as `operators`, by the
    words of calls in a trace of PyTorch's profiler (`call_key.py`). `partial`: it may lack times, which are then those
    of a cluster (`partly_profiled.py`)."""

    machine: ProfiledMachine
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    network: Mapping[tuple[str, int], Curve] = field(default_factory=dict)
    growing: Mapping[str, Curve] = field(default_factory=dict)
    step_s: float = 0.0
    sources: tuple[str, ...] = ()
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    partial: bool = False

    def faster(self, times: float) -> "Profile":
        """The profile of ranks that compute so many times as fast."""
        operators, calls = (
            {w: {phase: s / times for phase, s in found.items()} for w, found in table.items()}
            for table in (self.operators, self.calls)
        )
        growing = {n: Curve(tuple((size, s / times) for size, s in c.points)) for n, c in self.growing.items()}
        return replace(self, operators=operators, calls=calls, growing=growing, step_s=self.step_s / times)


def merged(profiles: Iterable[Profile]) -> Profile:
    """The profile made from several of the same machine. Of times that several have it takes the median: a run during
    which the machine did something else does not count."""
    found = tuple(profiles)
    operators, calls = (_medians(tables) for tables in ([p.operators for p in found], [p.calls for p in found]))
    kinds = {key: None for p in found for key in p.network}
    network = {k: Curve.of((x for p in found if k in p.network for x in p.network[k].points), median) for k in kinds}
    names = [name for name in GROWING if any(name in p.growing for p in found)]
    growing = {n: Curve.of((x for p in found if n in p.growing for x in p.growing[n].points), median) for n in names}
    sources = tuple(dict.fromkeys(s for p in found for s in p.sources))
    most = max((p.machine for p in found), key=lambda m: m.processes)
    partial = any(p.partial for p in found)
    return Profile(most, operators, network, growing, median(p.step_s for p in found), sources, calls, partial)


def _medians(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The median of the times that several tables have, by words and phase."""
    return {
        key: {
            phase: median(times)
            for phase in PHASES
            if (times := [t[phase] for table in tables if phase in (t := table.get(key, {}))])
        }
        for key in {key: None for table in tables for key in table}
    }
