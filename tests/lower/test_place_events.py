"""`place_events`: the actions that a role's tasks become, in words: posts, waits, drops and reductions."""

import pytest

from ssdsl.ir.function import Backward, OpPart, Parameter
from ssdsl.ir.param import FlatParam, StateAxes, SumTiedGrads
from ssdsl.ir.program import (
    Action,
    Compute,
    Free,
    GatherParam,
    Result,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.value import Name
from ssdsl.lower.params.flatten_params import completion_of
from ssdsl.lower.stages import Carry, Scheduled
from ssdsl.lower.tasks.place_events import AwaitedTransfers, place_events
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from tests.lower.by_hand import submesh
from tests.lower.stages import pipeline, signal, var, with_tasks, words

WHOLE = StateAxes()
ZERO_1 = StateAxes(optimizer=("dp",))
ZERO_2 = StateAxes(grads=("dp",), optimizer=("dp",))
ZERO_3 = StateAxes(("dp",), ("dp",), ("dp",))


def actions(lowering: Scheduled, role: int = 0) -> str:
    return " ".join(map(word, place_events(lowering).roles[role].actions))


def word(action: Action) -> str:
    match action:
        case Compute():
            return words((action,))
        case Start(message, at, gradient, end):
            return f"{end.value}-{message}{chr(39) if gradient else '.'}{at[0]}"
        case Wait(message, at, gradient):
            return f"wait-{message}{chr(39) if gradient else '.'}{at[0]}"
        case Free(slot, at):
            return f"free-{slot.replace(' ', '-')}.{at[0]}"
        case ScatterGrads(flat, within):
            return f"{'scatter-within' if within else 'scatter'}-{flat}"
        case StartReduce(flat, within):
            return f"{'within' if within else 'reduce'}-{flat}"
        case WaitReduce(flat):
            return f"reduced-{flat}"
        case GatherParam(flat):
            return f"gather-{flat}"
        case Update():
            return "update"


def flat(
    number: int, weight: str, stage: int, sharded: StateAxes = WHOLE, partial: tuple[str, ...] = ("dp",)
) -> FlatParam:
    place = submesh({"pp": 2}, pp=stage)
    completion = completion_of(partial, sharded, 8, dict.fromkeys((*partial, *sharded.optimizer), 2))
    return FlatParam(number, place, (weight,), "float32", sharded, completion, 8)


def one(tasks: str, *flats: FlatParam, parts: int = 2) -> Scheduled:
    return replace(with_tasks(pipeline(2, parts, []), tasks, ""), flats=flats)


def two(sender: str, receiver: str) -> Scheduled:
    return with_tasks(pipeline(2, 2, [(0, 1)]), sender, receiver)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_receive_is_posted_where_it_stands_and_awaited_by_the_task_that_reads_it() -> None:
    assert actions(two("", "0.0 0.1 F0 F1"), 1) == (
        "receive-0.0 receive-0.1 wait-0.0 F0 free-v0-there.0 wait-0.1 F1 free-v0-there.1 update"
    )


def test_a_value_is_dropped_behind_the_send_that_reads_it_last() -> None:
    assert actions(two("F0 0.0", "")) == "F0 send-0.0 free-v0.0 update"


def test_a_gradient_is_sent_without_a_drop_and_awaited_by_the_backward() -> None:
    assert actions(two("F0 0.0 0'0 B0", "")) == "F0 send-0.0 free-v0.0 receive-0'0 wait-0'0 B0 update"
    assert actions(two("", "0.0 F0 B0 0'0"), 1).endswith("F0 free-v0-there.0 B0 send-0'0 update")


def test_an_output_that_was_asked_for_is_kept() -> None:
    lowering = replace(two("F0 0.0", ""), results=(Result("hidden", 0, Name("y"), "v0"),))
    assert actions(lowering) == "F0 send-0.0 update"


def test_a_value_that_two_tasks_read_is_dropped_behind_the_second() -> None:
    lowering = with_tasks(pipeline(3, 1, [(0, 1), (0, 2)]), "F0 0.0 1.0", "", "")
    messages = tuple(replace(m, source_slot="y") for m in lowering.messages)
    assert actions(replace(lowering, messages=messages)) == "F0 send-0.0 send-1.0 free-y.0 update"


def test_the_later_end_of_a_signal_waits_where_it_stands() -> None:
    lowering = two("F0 0.0", "0.0 F0")
    lowering = replace(lowering, messages=(signal(0, 0, 1, {"pp": 2}),), functions=pipeline(2, 2, []).functions)
    assert actions(lowering) == "F0 send-0.0 update" and actions(lowering, 1) == "receive-0.0 wait-0.0 F0 update"


def test_a_role_without_tasks_has_no_actions() -> None:
    assert actions(two("F0 0.0", ""), 1) == ""


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [WHOLE, ZERO_1])
def test_a_reduction_starts_behind_the_last_backward_and_is_awaited_before_the_update(sharded: StateAxes) -> None:
    gathered = " gather-0" if sharded.optimizer else ""
    found = actions(one("F0 F1 B0 B1", flat(0, "w0", 0, sharded)))
    assert found == f"F0 F1 B0 B1 within-0 reduced-0 update{gathered}"


def test_a_reduction_of_more_than_its_task_completes_starts_behind_the_sends_for_which_others_wait() -> None:
    lowering = with_tasks(pipeline(2, 2, [(0, 1)]), "", "0.0 F0 B0 0'0 0.1 F1")
    more = replace(flat(0, "w1", 1), weights=("w1", "w2"))
    found = actions(replace(lowering, flats=(more,)), 1)
    assert found.startswith("receive-0.0 wait-0.0 F0 free-v0-there.0 B0 send-0'0 receive-0.1 reduce-0 wait-0.1 F1")
    alone = actions(replace(lowering, flats=(flat(0, "w1", 1), replace(more, number=1))), 1)
    assert alone.startswith(
        "receive-0.0 wait-0.0 F0 free-v0-there.0 B0 within-0 send-0'0 receive-0.1 reduce-1 wait-0.1"
    )


def test_reductions_within_a_task_start_in_the_order_in_which_its_backward_completes_them() -> None:
    """The backward of what is read last runs first, whatever the numbers."""
    lowering = one("F0 B0", flat(0, "w0", 0), flat(1, "late", 0))
    first, *others = lowering.functions
    reads = tuple(OpPart("y", (), (Name(w),), ()) for w in ("w0", "late"))
    weights = tuple(Parameter(var(w)) for w in ("w0", "late"))
    first = replace(first, parameters=weights, sections=(replace(first.sections[0], body=reads),))
    assert (
        actions(replace(lowering, functions=(first, *others))) == "F0 B0 within-1 within-0 reduced-0 reduced-1 update"
    )


def test_with_zero_2_gradients_go_to_their_owners_within_each_backward() -> None:
    found = actions(one("F0 B0 F1 B1", flat(0, "w0", 0, ZERO_2)))
    assert found == "F0 B0 scatter-within-0 F1 B1 scatter-within-0 reduced-0 update gather-0"


def test_with_zero_3_neither_reductions_nor_gathers_stand_between_tasks() -> None:
    assert actions(one("F0 B0", flat(0, "w0", 0, ZERO_3))) == "F0 B0 update"


def test_what_replicas_of_shards_owe_is_summed_once_behind_the_last_backward() -> None:
    hybrid = flat(0, "w0", 0, ZERO_3, ("dp", "node"))
    assert actions(one("F0 F1 B0 B1", hybrid)) == "F0 F1 B0 B1 reduce-0 reduced-0 update"


def test_an_optimizer_in_finer_parts_than_the_weights_reduces_once_and_gathers_what_it_updated() -> None:
    finer = flat(0, "w0", 0, StateAxes(("dp",), ("dp",), ("dp", "node")), ("dp", "node"))
    assert actions(one("F0 F1 B0 B1", finer)) == "F0 F1 B0 B1 reduce-0 reduced-0 update gather-0"


def test_gradients_in_finer_parts_than_the_weights_are_scattered_behind_each_backward() -> None:
    finer = flat(0, "w0", 0, StateAxes(("dp",), ("dp", "node"), ("dp", "node")), ("dp", "node"))
    assert actions(one("F0 F1 B0 B1", finer)) == "F0 F1 B0 scatter-0 B1 scatter-0 reduced-0 update gather-0"


def test_gathers_start_in_the_order_in_which_the_next_forward_awaits_them() -> None:
    """What no task reads comes behind, and then what other roles have, too, in the order that all of them have."""
    lowering = one("F0 B0", *(flat(n, f"w{n}", 0, ZERO_1) for n in range(3)))
    first, *others = lowering.functions
    (section,) = first.sections
    first = replace(first, sections=(replace(section, awaits=(0, 2)), section))
    assert actions(replace(lowering, functions=(first, *others))).endswith("update gather-0 gather-2 gather-1")
    shared = (*(replace(flat(n, f"w{n}", 0, ZERO_1), submesh=submesh({"pp": 2})) for n in range(2)), lowering.flats[2])
    assert actions(replace(lowering, flats=shared)).endswith("update gather-2 gather-1 gather-0")


def test_in_halves_the_gradients_of_weights_are_there_behind_the_second() -> None:
    lowering = one("F0 B0", flat(0, "w0", 0))
    halves = tuple(replace(f, backward=Backward.HALVES) for f in lowering.functions)
    first, second = (Compute(0, (0,), phase) for phase in (Phase.DGRAD, Phase.WGRAD))
    found = place_events(
        replace(lowering, functions=halves, tasks=((first, Compute(0, (1,), Phase.FORWARD), second), ()))
    )
    assert [type(a).__name__ for a in found.roles[0].actions] == (
        ["Compute", "Compute", "Compute", "StartReduce", "WaitReduce", "Update"]
    )


def test_what_several_roles_share_is_reduced_at_the_end_in_one_order() -> None:
    shared = replace(flat(0, "w0", 0), submesh=submesh({"pp": 2}))
    assert actions(one("F0 B0 F1", shared)) == "F0 B0 F1 reduce-0 reduced-0 update"
    assert actions(one("F0 B0 F1", flat(0, "w0", 0))) == "F0 B0 within-0 F1 reduced-0 update"


def test_copies_of_a_tied_weight_are_summed_before_the_update_whatever_the_stage_of_zero() -> None:
    tied = SumTiedGrads((submesh({"pp": 2}, pp=0), submesh({"pp": 2}, pp=1)))
    for sharded in (WHOLE, ZERO_2, ZERO_3):
        whole = flat(0, "w0", 0, sharded, ())
        both = replace(whole, completion=whole.completion._replace(once=(tied,)))
        assert "reduced-0 update" in actions(one("F0 B0", both))


def test_a_weight_that_needs_no_completion_is_updated_as_it_is() -> None:
    assert actions(one("F0 B0", flat(0, "w0", 0, partial=()))) == "F0 B0 update"


def test_a_program_that_does_not_train_has_no_update() -> None:
    assert actions(replace(one("F0", flat(0, "w0", 0)), trains=False)) == "F0"


def test_a_forward_waits_for_its_part_and_a_backward_for_the_gradients_of_what_it_sent() -> None:
    lowering = with_tasks(pipeline(3, 2, [(0, 1), (1, 2)]), "", "F1 B1", "")
    awaited, (forward, backward) = AwaitedTransfers(lowering), lowering.tasks[1]
    assert [*awaited.of(forward)] == [Carry(0, (1,), False)]  # type: ignore[arg-type]
    assert [*awaited.of(backward)] == [Carry(1, (1,), True)]  # type: ignore[arg-type]
