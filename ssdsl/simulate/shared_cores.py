"""Stretches a step's time where more ranks compute at once than there are cores.

The step is simulated first as if each rank had a core. While `n` ranks compute on `c < n` cores, each gets `c / n` of a
core, so that this stretch of the step takes `n / c` times as long, for everything that happens in it. Ranks that wait
leave their core to others: a pipeline with bubbles loses less than replicas, which compute all the time.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ssdsl.ir.execute import ActionPart
from ssdsl.record import replace
from ssdsl.simulate.run import Interval, Trace


def on_cores(trace: Trace, ranks: Sequence[int], cores: int) -> Trace:
    """The trace on `cores` cores; `ranks` has the number of ranks of each role, by the role's number."""
    points = [*_points(trace, ranks, cores)]
    starts = [start for start, _, _ in points]

    def at(time_s: float) -> float:
        start, real_s, rate = points[bisect_right(starts, time_s) - 1]
        return real_s + (time_s - start) * rate

    def stretched(x: Interval) -> Interval:
        start, end = at(x.start), at(x.end)
        cost = replace(x.cost, compute_s=end - start - x.cost.communication_s) if _computes(x) else x.cost
        return x._replace(start=start, end=end, cost=cost)

    return Trace(
        [*map(stretched, trace.intervals)],
        trace.flows,
        [
            s._replace(start=at(s.start), end=at(s.end), came=at(s.came), left=at(s.left), asked=at(s.asked))
            for s in trace.stalls
        ],
        [*map(at, trace.ended)],
    )


def _points(trace: Trace, ranks: Sequence[int], cores: int) -> Iterator[tuple[float, float, float]]:
    """Yields the times at which the number of computing ranks changes: the time with a core for each rank, the same
    moment with these cores, and the rate, which is how many times as long everything takes from then on.

    Ranks that communicate within a task use no core, but wait for each other. So of a task that computes for a share of
    its time, only this share takes longer. Four ranks on two cores whose tasks compute for half of their time have the
    rate 1 + 1/2 * (4/2 - 1) = 1.5.
    """
    changes: list[tuple[float, int, float]] = [(0.0, 0, 0.0)]
    for x in trace.intervals:
        if _computes(x):
            count = ranks[x.role]
            computing = count * x.cost.compute_s / x.cost.time_s
            changes += (x.start, count, computing), (x.end, -count, -computing)
    before_s = real_s = 0.0
    active, busy, rate = 0, 0.0, 1.0  # `busy` / `active`: the share of the time for which active ranks compute
    for time_s, count, computing in sorted(changes):
        real_s += (time_s - before_s) * rate
        active, busy, before_s = active + count, busy + computing, time_s
        rate = 1 + busy / active * (active / cores - 1) if active > cores else 1.0
        yield time_s, real_s, rate


def _computes(x: Interval) -> bool:
    return x.part is ActionPart.RUN and x.cost.compute_s > 0
