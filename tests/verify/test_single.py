"""Plans for any batch with a batch of one: an index of one part cuts nothing, and more parts there are none."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import captured

STAGES = """\
use pipeline: {schedule}
mesh gpus(pp = 2, dp = {parts})
split model by batch into dp, m = 1
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 1)
"""
PLANS = {
    "data": "mesh gpus(dp = 1, tp = 2)\nsplit model by batch into dp\n"
    "split model by ffn into tp\nassign model to gpus\n",
    **{name: STAGES.format(schedule=name, parts=1) for name in ("gpipe", "one_f_one_b", "zb_h1")},
}


def tried(text: str) -> Outcome:
    model, graph = captured("single.py:one")
    return try_plan(model, graph, text, Training(2, optimizer="adamw", lr=0.02))


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_numbers_are_those_of_one_device(text: str) -> None:
    outcome = tried(text)
    assert outcome.kind == "equal", outcome.text


def test_one_sample_has_no_two_parts() -> None:
    outcome = tried(STAGES.format(schedule="gpipe", parts=2))
    assert outcome.text.startswith("E0203: cannot split `batch` into 2 equal parts"), outcome.text


def test_another_name_is_still_unknown() -> None:
    outcome = tried("mesh gpus(dp = 1)\nsplit model by btch into dp\nassign model to gpus\n")
    assert outcome.sign == "E0204"
