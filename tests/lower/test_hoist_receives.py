"""`hoist_receives`: where receives stand among the tasks of a role, on tasks in words (`0.1`: message 0 for part 1)."""

from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.hoist_receives import AwaitedTransfers, hoist_receives
from ssdsl.lower.tasks.task import Carry
from ssdsl.plan.plan import Mark, Plan
from tests.lower.by_hand import SPAN, plan_of, saying
from tests.lower.stages import GRAPH, lanes, pipeline, with_tasks, words

IN_TURN = "0.0 F0 0.1 F1 0.2 F2 0.3 F3 0.4 F4"


def hoisted(lowering: Lowering) -> list[str]:
    return [words(tasks) for tasks in hoist_receives(lowering).tasks]


def ahead(number: int) -> Plan:
    return saying(plan_of(GRAPH, {"pp": 2}), "y", ahead=Mark(number, SPAN))


def two(receiver: str, plan: Plan | None = None) -> str:
    return hoisted(with_tasks(pipeline(2, 5, [(0, 1)], plan), "", receiver))[1]


def test_a_message_is_received_two_parts_ahead_of_the_one_that_is_read_next() -> None:
    assert two(IN_TURN) == "0.0 0.1 0.2 F0 0.3 F1 0.4 F2 F3 F4"


def test_a_plan_says_how_many_parts_ahead() -> None:
    assert two(IN_TURN, ahead(0)) == IN_TURN
    assert two(IN_TURN, ahead(1)) == "0.0 0.1 F0 0.2 F1 0.3 F2 0.4 F3 F4"
    assert two(IN_TURN, ahead(9)) == "0.0 0.1 0.2 0.3 0.4 F0 F1 F2 F3 F4"


def test_receives_that_are_too_early_for_their_buffers_move_back() -> None:
    assert two("0.0 0.1 0.2 0.3 0.4 F0 F1 F2 F3 F4", ahead(0)) == IN_TURN


def test_in_a_lane_of_several_peers_they_stay_as_early_as_they_were() -> None:
    early = "0.0 1.0 0.1 1.1 F0 F1"
    lowering = with_tasks(pipeline(3, 2, [(0, 2), (1, 2)], ahead(0)), "", "", early)
    assert hoisted(lanes(lowering, 0, 0))[2] == early
    assert hoisted(lanes(lowering, 0, 1))[2] == "0.0 1.0 F0 0.1 1.1 F1"


def test_a_send_stays_where_it_was() -> None:
    sender = "F0 0.0 F1 0.1 F2 0.2"
    assert hoisted(with_tasks(pipeline(2, 3, [(0, 1)]), sender, ""))[0] == sender


def test_a_receive_does_not_pass_a_send_of_its_lane_and_does_pass_one_of_another() -> None:
    """The middle stage receives message 0 and sends message 1."""
    middle = "0.0 F0 1.0 0.1 F1 1.1"
    lowering = with_tasks(pipeline(3, 2, [(0, 1), (1, 2)]), "", middle, "")
    assert hoisted(lanes(lowering, 0, 1))[1] == "0.0 0.1 F0 1.0 F1 1.1"
    assert hoisted(lanes(lowering, 0, 0))[1] == middle


def test_gradients_are_received_ahead_too_and_apart_from_values() -> None:
    first = "F0 0.0 F1 0.1 0'0 B0 0'1 B1"
    assert hoisted(with_tasks(pipeline(2, 2, [(0, 1)]), first, ""))[0] == "0'0 0'1 F0 0.0 F1 0.1 B0 B1"


def test_a_forward_waits_for_its_part_and_a_backward_for_the_gradients_of_what_it_sent() -> None:
    lowering = with_tasks(pipeline(3, 2, [(0, 1), (1, 2)]), "", "F1 B1", "")
    awaited, (forward, backward) = AwaitedTransfers(lowering), lowering.tasks[1]
    assert [*awaited.of(forward)] == [Carry(0, (1,), False)]  # type: ignore[arg-type]
    assert [*awaited.of(backward)] == [Carry(1, (1,), True)]  # type: ignore[arg-type]
