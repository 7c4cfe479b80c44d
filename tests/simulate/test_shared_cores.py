"""More ranks than cores: what computes at the same time takes turns."""

from ssdsl.ir.execute import Trace
from ssdsl.ir.program import Compute
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.costs import Cost
from ssdsl.simulate.run import Interval
from ssdsl.simulate.shared_cores import on_cores

TASK = Compute(0, (), Phase.FORWARD)


def trace(*tasks: tuple[int, float, Cost]) -> Trace:
    """Tasks by role, start and cost; nothing follows the last."""
    intervals = [Interval(role, TASK, start, start + cost.time_s, cost) for role, start, cost in tasks]
    return Trace(intervals, ended=[max(x.end for x in intervals)])


def spans(found: Trace) -> list[tuple[float, float]]:
    return [(x.start, x.end) for x in found.intervals]


def test_two_ranks_on_a_core_take_turns_while_both_compute() -> None:
    found = on_cores(trace((0, 0.0, Cost(2.0)), (1, 1.0, Cost(2.0))), [1, 1], 1)
    assert spans(found) == [(0.0, 3.0), (1.0, 4.0)]
    assert [x.cost.compute_s for x in found.intervals] == [3.0, 3.0]
    assert found.ended == [4.0]


def test_ranks_that_wait_leave_their_core_to_others() -> None:
    """Four ranks compute as much on two cores in a pipeline without overlap as with a core for each."""
    alternating = (0, 0.0, Cost(1.0)), (1, 1.0, Cost(1.0)), (0, 2.0, Cost(1.0))
    assert spans(on_cores(trace(*alternating), [2, 2], 2)) == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    (replicas,) = on_cores(trace((0, 0.0, Cost(3.0))), [4], 2).intervals
    assert (replicas.start, replicas.end) == (0.0, 6.0)


def test_communication_within_a_task_takes_as_long_as_before() -> None:
    (found,) = on_cores(trace((0, 0.0, Cost(2.0, 2.0))), [4], 2).intervals
    assert (found.end, found.cost.compute_s, found.cost.communication_s) == (6.0, 4.0, 2.0)
