"""`schedule`, a word of the language: 1F1B, or the order of two numbers for each stage."""

import pytest

from ssdsl.lang.parse import parse
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import TaskSet
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """\
{first}
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
{last}
"""


def rows(last: str, first: str = "") -> list[tuple[TaskSet, object]]:
    """The rows of the plan's one clock: tasks and times."""
    script = parse(Source("plan.ssp", PLAN.format(first=first, last=last)))
    (clock,) = interpret_all(script, graph_of("gpt:tiny"), {}, None)[0].clocks
    return [(row.tasks, row.time) for row in clock.rows]


def test_without_numbers_it_is_1f1b() -> None:
    assert rows("schedule(stage, 4)") == rows("one_f_one_b(stage, 4)", "use pipeline: one_f_one_b")


def test_with_numbers_it_is_their_order_named_or_not_imported_or_not() -> None:
    found = rows("schedule(stage, 4, ahead = [2, 1], late = [0, 1])")
    assert [tasks for tasks, _ in found] == [tasks for tasks, _ in rows("zb_h1(stage, 4)", "use pipeline: zb_h1")]
    assert rows("schedule(stage, 4, [2, 1], [0, 1])") == found
    assert rows("schedule(stage, 4, late = [0, 1], ahead = [2, 1])", "use pipeline: schedule") == found


@pytest.mark.parametrize(
    "numbers", ["ahead = [2, 1]", "[2, 1]", "[2, 1], [0, 1], late = [0, 1]", "[2, 1], ahead = [2, 1]"]
)
def test_one_list_of_numbers_is_refused(numbers: str) -> None:
    with pytest.raises(PlanError) as error:
        rows(f"schedule(stage, 4, {numbers})")
    (wrong,) = error.value.diagnostics
    assert wrong.code == "E0229" and wrong.text(wrong.title).endswith("late = numbers)")
    assert ("among them" in wrong.text(wrong.label)) is ("=" in numbers)


def test_a_plan_may_have_a_schedule_of_its_own() -> None:
    first = "def schedule(stage):\n    order by clock for s in 0..2, m in 0..4:\n        stage[s].fwd[m = m] at m + s\n"
    assert len(rows("schedule(stage)", first)) == 8
