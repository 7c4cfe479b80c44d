"""`either:` and `or:`: the first branch is what the plan says; a search may choose another one for each turn."""

from pathlib import Path

import pytest

from ssdsl.compile import make_plan
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.plan.plan import Plan
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
PLAN = """mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
for layer in each("h.*"):
    either:
        split layer by ffn into m = 2
    or:
        recompute layer
"""
NAME = "either:5"


def plan(text: str = PLAN, folder: Path | None = None, **numbers: int) -> Plan:
    return make_plan(Source("plan.ssp", text), captured(GPT)[1], numbers, folder)[0]


def recomputed(found: Plan) -> set[str]:
    """The layers that are recomputed."""
    paths = (found.graph.by_name[name].path for name, record in found.operators.items() if record.is_recomputed)
    return {path.partition("h.")[2][:1] for path in paths}


def test_the_first_branch_is_what_the_plan_says() -> None:
    assert recomputed(plan()) == set()
    assert any(i.name == "m" for record in plan().operators.values() for i in record.indices)


def test_a_branch_is_a_number_for_all_turns_or_for_one() -> None:
    assert recomputed(plan(**{NAME: 1})) == {"0", "1"}
    assert recomputed(plan(**{f"{NAME}@1": 1})) == {"1"}
    assert recomputed(plan(**{NAME: 1, f"{NAME}@1": 0})) == {"0"}


def test_a_file_that_is_used_has_its_first_branches(tmp_path: Path) -> None:
    (tmp_path / "own.ssp").write_text(
        "def place(ops, there):\n    either:\n        assign ops to there\n    or:\n        recompute ops\n"
    )
    text = 'use "own.ssp": place\nmesh gpus(dp = 2)\nplace(model, gpus)\n'
    assert recomputed(plan(text, tmp_path)) == set()


@pytest.mark.parametrize("text", ["let either = model\nrecompute either", "let x = 1 if 2 > 1 or 1 > 2 else 0"])
def test_its_words_may_be_used_elsewhere(text: str) -> None:
    assert plan(f"mesh gpus(dp = 2)\nassign model to gpus\n{text}\n")


def test_no_param_stands_in_a_branch() -> None:
    with pytest.raises(PlanError, match="E0227"):
        plan("mesh gpus(dp = 2)\nassign model to gpus\neither:\n    param A = 1\nor:\n    recompute model\n")


def test_it_is_written_in_one_way() -> None:
    source = Source("a.ssp", "either :  # a\n  recompute model\n\n# b\nor:   # c\n  prefetch model by 2\n")
    assert format_script(parse(source), source) == (
        "either:  # a\n    recompute model\n\n# b\nor:  # c\n    prefetch model by 2\n"
    )


IN_LOOP = """mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
for layer in each("h.*"):
    param again = 0 in [0, 1]
    if again == 1:
        recompute layer
"""


def test_a_param_in_a_loop_has_a_value_in_each_turn() -> None:
    assert recomputed(plan(IN_LOOP)) == set()
    assert recomputed(plan(IN_LOOP, again=1)) == {"0", "1"}
    assert recomputed(plan(IN_LOOP, **{"again@1": 1})) == {"1"}
    assert recomputed(plan(IN_LOOP, **{"again": 1, "again@1": 0})) == {"0"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"param again = 2\n{IN_LOOP}", "E0202"),
        (f"{IN_LOOP}for layer in each('h.*'):\n    param again = 0 in [0, 1]\n".replace("'", '"'), "E0202"),
        (IN_LOOP.replace("0 in [0, 1]", "2 in [0, 1]"), "E0282"),
        (
            "def f(x):\n    for y in 0..x:\n        param n = 2\nf(2)\nmesh gpus(dp = 2)\nassign model to gpus\n",
            "E0227",
        ),
    ],
)
def test_a_param_in_a_loop_has_a_name_of_its_own(text: str, code: str) -> None:
    with pytest.raises(PlanError, match=code):
        plan(text)
