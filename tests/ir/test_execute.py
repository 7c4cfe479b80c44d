"""The engine on a few steps of a few roles: who waits for whom, and until when."""

from dataclasses import dataclass, replace

import pytest

from ssdsl.ir.execute import ActionPart, Await, Meet, Post, Step, Steps, Trace, execute
from ssdsl.ir.program import Action, Compute, GatherParam, StartReduce, Update, WaitReduce
from ssdsl.plan.plan import Phase
from ssdsl.text.diagnostic import InternalError


@dataclass(frozen=True)
class Seconds:
    time_s: float
    latency_s: float = 0.0
    compute_s: float = 0.0

    def slowed(self, by_s: float) -> "Seconds":
        return replace(self, time_s=self.time_s + by_s, compute_s=self.compute_s + by_s)


def run(*roles: list[Step], contention: float = 0.0, **costs: float) -> Trace[Seconds]:
    """Roles whose actions cost, by the names of their classes, what is given, or nothing."""

    def cost(role: int, action: Action) -> Seconds:
        time_s = costs.get(type(action).__name__, 0.0)
        return (
            Seconds(time_s * (role + 1), 0.0, time_s * (role + 1)) if isinstance(action, Compute) else Seconds(time_s)
        )

    names = tuple(f"role{k}" for k in range(len(roles)))
    return execute(Steps(names, tuple(map(tuple, roles))), cost, [contention] * len(roles))


def task(number: int, *roles: int) -> Meet:
    action = Compute(number, (), Phase.FORWARD)
    return Meet(action, action, roles)


def posted(number: int, sources: tuple[int, ...], targets: tuple[int, ...]) -> Post:
    return Post(StartReduce(number), number, sources, targets)


def awaited(number: int, *sources: int) -> Await:
    return Await(WaitReduce(number), number, sources)


def test_a_post_within_a_task_travels_while_that_ends() -> None:
    start, end = posted(0, (0,), (0,))._replace(earlier_s=3.0), awaited(0, 0)
    trace = run([task(0, 0), start, end], Compute=4.0, StartReduce=5.0)
    (moved,) = (x for x in trace.intervals if isinstance(x.action, StartReduce))
    assert (moved.start, moved.end) == (1.0, 6.0)
    assert [(x.start, x.end, x.left) for x in trace.stalls] == [(4.0, 6.0, 1.0)]


def test_roles_that_meet_start_with_the_last_and_go_at_the_pace_of_the_slowest() -> None:
    trace = run([task(0, 0, 1)], [task(1, 1), task(0, 0, 1)], Compute=1.0)
    both = [(x.start, x.end) for x in trace.intervals if x.action == Compute(0, (), Phase.FORWARD)]
    assert both == [(2.0, 4.0)] * 2  # role 1 takes twice as long for everything
    assert trace.ended == [4.0, 4.0]


def test_what_is_posted_travels_while_its_roles_go_on() -> None:
    send = posted(0, (0,), (1,))
    trace = run([send, task(0, 0)], [send, task(1, 1), awaited(0, 0)], Compute=1.0, StartReduce=5.0)
    assert trace.ended == [1.0, 5.0]
    assert [(x.role, x.start, x.end, x.last, *x.on_its_way) for x in trace.stalls] == [(1, 2.0, 5.0, 0, 2.0, 5.0)]
    ((sent, received),) = trace.flows
    assert trace.intervals[sent].part is ActionPart.SENT and trace.intervals[received].part is ActionPart.RECEIVED


def test_a_link_carries_first_what_can_travel_first() -> None:
    """Role 0 posts the second long after the first, whose other source has yet to run."""
    both, late = posted(0, (0, 1), (2,)), posted(1, (0,), (2,))
    trace = run(
        [both, task(0, 0), late],
        [task(1, 1), both],
        [both, late, awaited(0, 0, 1), awaited(1, 0)],
        Compute=5.0,
        StartReduce=1.0,
    )
    arrived = {x.action: x.end for x in trace.intervals if x.part is ActionPart.RECEIVED}
    assert arrived == {StartReduce(0): 11.0, StartReduce(1): 6.0}


def arrivals(trace: Trace[Seconds]) -> list[tuple[int, float, float]]:
    """The messages that arrive, each with the role, its start and its end."""
    return [(x.role, x.start, x.end) for x in trace.intervals if x.part is ActionPart.RECEIVED]


def test_a_link_carries_one_message_after_another() -> None:
    ends: list[Step] = [posted(0, (0,), (1,)), posted(1, (0,), (1,))]
    trace = run(ends, [*ends, awaited(1, 0)], StartReduce=3.0)
    assert arrivals(trace) == [(1, 0.0, 3.0), (1, 3.0, 6.0)]


def test_a_role_sends_to_one_role_after_another() -> None:
    first, second = posted(0, (0,), (1,)), posted(1, (0,), (2,))
    trace = run([first, second], [first, awaited(0, 0)], [second, awaited(1, 0)], StartReduce=3.0)
    assert arrivals(trace) == [(1, 0.0, 3.0), (2, 3.0, 6.0)]


def test_a_role_receives_from_one_role_after_another() -> None:
    first, second = posted(0, (0,), (2,)), posted(1, (1,), (2,))
    trace = run([first], [second], [first, second, awaited(0, 0), awaited(1, 1)], StartReduce=3.0)
    assert arrivals(trace) == [(2, 0.0, 3.0), (2, 3.0, 6.0)]


def test_a_role_sends_while_it_receives() -> None:
    there, back = posted(0, (0,), (1,)), posted(1, (1,), (0,))
    trace = run([there, back, awaited(1, 1)], [there, back, awaited(0, 0)], StartReduce=3.0)
    assert arrivals(trace) == [(1, 0.0, 3.0), (0, 0.0, 3.0)]


def test_a_message_to_several_roles_leaves_once() -> None:
    """Its cost is that of all its pieces."""
    ends: list[Step] = [posted(0, (0,), (1, 2)), posted(1, (0,), (1,))]
    trace = run(ends, [*ends, awaited(1, 0)], [ends[0], awaited(0, 0)], StartReduce=3.0)
    assert sorted(arrivals(trace)) == [(1, 0.0, 3.0), (1, 3.0, 6.0), (2, 0.0, 3.0)]


def test_a_collective_begins_when_all_are_there_and_has_no_flow() -> None:
    all_of_them = posted(0, (0, 1), (0, 1))
    ends: list[Step] = [all_of_them, awaited(0, 0, 1)]
    trace = run(ends, [task(0, 1), *ends], Compute=1.0, StartReduce=3.0)
    assert [(x.start, x.end) for x in trace.intervals if x.action == StartReduce(0)] == [(2.0, 5.0)] * 2
    assert not trace.flows and trace.ended == [5.0, 5.0]


def test_computing_beside_what_a_link_carries_is_slower() -> None:
    """Role 0 sends for 3 s while it computes for 4: it takes 1.5 s longer, and role 1, which computes for 2 s before it
    waits, computes only beside what it receives."""
    send = posted(0, (0,), (1,))
    half = {"contention": 0.5, "StartReduce": 3.0}
    alone = run([send, task(0, 0)], [send, awaited(0, 0)], Compute=4.0, StartReduce=3.0)
    beside = run([send, task(0, 0)], [send, awaited(0, 0)], Compute=4.0, **half)
    assert alone.ended == [4.0, 3.0] and beside.ended == [5.0, 3.0]  # 3 s beside it do what 2 s do alone
    assert [x.cost.compute_s for x in beside.intervals if x.role == 0 and x.part is ActionPart.RUN] == [5.0]


def test_a_message_that_comes_later_slows_what_already_runs() -> None:
    """Role 1 has begun to compute for 6 s when role 0 sends, after 2 s, for 1.5: 1 s of its work takes 1.5."""
    send = posted(0, (0,), (1,))
    trace = run([task(0, 0), send], [send, task(1, 1), awaited(0, 0)], Compute=2.0, StartReduce=1.5, contention=0.5)
    assert trace.ended == [2.0, 4.5] and arrivals(trace) == [(1, 2.0, 3.5)]


def test_roles_that_meet_are_as_slow_as_the_slowest() -> None:
    send = posted(0, (0,), (1,))
    trace = run(
        [send, task(0, 0, 2)], [send, awaited(0, 0)], [task(0, 0, 2)], Compute=1.0, StartReduce=9.0, contention=1.0
    )
    assert trace.ended == [6.0, 9.0, 6.0]


@pytest.mark.parametrize(("later_s", "waits"), [(0.0, 3.0), (1.0, 2.0), (4.0, 0.0)])
def test_what_a_task_needs_later_may_arrive_while_it_runs(later_s: float, waits: float) -> None:
    send, needed = posted(0, (0,), (0,)), awaited(0, 0)._replace(later_s=later_s)
    trace = run([send, needed, task(0, 0)], Compute=5.0, StartReduce=3.0)
    assert trace.ended == [waits + 5.0]
    assert [(x.start, x.end) for x in trace.stalls] == ([(0.0, waits)] if waits else [])


def test_who_never_posts_is_named() -> None:
    alone = Meet(Update(), "update", (1,))
    with pytest.raises(InternalError) as raised:
        run([awaited(0, 1)], [alone])
    assert str(raised.value).splitlines()[1:] == ["role0 waits for role1 in WaitReduce(flat=0)"]


def test_a_cycle_leaves_out_who_only_waits_for_it() -> None:
    first, second = (Meet(GatherParam(n), n, (0, 1)) for n in (0, 1))
    with pytest.raises(InternalError) as raised:
        run([first, second], [second, first], [awaited(7, 0)])
    assert str(raised.value).splitlines()[1:] == [
        "role0 waits for role1 in GatherParam(flat=0)",
        "role1 waits for role0 in GatherParam(flat=1)",
    ]
