"""When devices post receives, on actions in words (`0.1`: message 0 for part 1): `roles_of_devices`."""

from collections.abc import Iterator

from ssdsl.ir.program import Action, Compute, Program, Start
from ssdsl.lower.stages import Carry, Scheduled, Task
from ssdsl.lower.tasks.place_events import place_events
from ssdsl.plan.plan import Mark, Plan
from ssdsl.simulate.early_receives import roles_of_devices
from tests.lower.by_hand import SPAN, plan_of, saying
from tests.lower.stages import GRAPH, lanes, pipeline, with_tasks, words

IN_TURN = "0.0 F0 0.1 F1 0.2 F2 0.3 F3 0.4 F4"


def posted(lowering: Scheduled) -> list[str]:
    """The messages and tasks of each role, as its devices carry them out."""
    placed = place_events(lowering)
    plan, functions, messages, roles = placed.plan, placed.functions, placed.messages, placed.roles
    program = Program(plan, functions, (), messages, (), (), roles, losses=())
    return [words(tuple(_tasks(role.actions))) for role in roles_of_devices(program)]


def _tasks(actions: tuple[Action, ...]) -> Iterator[Task]:
    for action in actions:
        if isinstance(action, Compute):
            yield action
        elif isinstance(action, Start):
            yield Carry(action.message, action.at, action.gradient)


def ahead(number: int) -> Plan:
    return saying(plan_of(GRAPH, {"pp": 2}), "y", ahead=Mark(number, SPAN))


def two(receiver: str, plan: Plan | None = None) -> str:
    return posted(with_tasks(pipeline(2, 5, [(0, 1)], plan), "", receiver))[1]


def test_a_message_is_received_two_parts_ahead_of_the_one_that_is_read_next() -> None:
    assert two(IN_TURN) == "0.0 0.1 0.2 F0 0.3 F1 0.4 F2 F3 F4"


def test_a_plan_says_how_many_parts_ahead() -> None:
    assert two(IN_TURN, ahead(0)) == IN_TURN
    assert two(IN_TURN, ahead(1)) == "0.0 0.1 F0 0.2 F1 0.3 F2 0.4 F3 F4"
    assert two(IN_TURN, ahead(9)) == "0.0 0.1 0.2 0.3 0.4 F0 F1 F2 F3 F4"


def test_what_the_program_starts_earlier_stays() -> None:
    assert two("0.0 0.1 0.2 0.3 0.4 F0 F1 F2 F3 F4", ahead(0)) == "0.0 0.1 0.2 0.3 0.4 F0 F1 F2 F3 F4"


def test_a_send_stays_where_it_was() -> None:
    sender = "F0 0.0 F1 0.1 F2 0.2"
    assert posted(with_tasks(pipeline(2, 3, [(0, 1)]), sender, ""))[0] == sender


def test_a_receive_does_not_pass_a_send_of_its_lane_and_does_pass_one_of_another() -> None:
    """The middle stage receives message 0 and sends message 1."""
    middle = "0.0 F0 1.0 0.1 F1 1.1"
    lowering = with_tasks(pipeline(3, 2, [(0, 1), (1, 2)]), "", middle, "")
    assert posted(lanes(lowering, 0, 1))[1] == "0.0 0.1 F0 1.0 F1 1.1"
    assert posted(lanes(lowering, 0, 0))[1] == middle


def test_gradients_are_received_ahead_too_and_apart_from_values() -> None:
    first = "F0 0.0 F1 0.1 0'0 B0 0'1 B1"
    assert posted(with_tasks(pipeline(2, 2, [(0, 1)]), first, ""))[0] == "0'0 0'1 F0 0.0 F1 0.1 B0 B1"
