"""Stages without operators, and stages of unlike kinds: a schedule of the library orders the others, to the same
numbers."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import captured

STAGES = """\
use pipeline: {schedule}
mesh gpus(pp = {devices})
split model by batch into m = 4
let half = balance(model, 2)
let stage = cut(model, {stages}, before = [{before}])
assign stage[s] to gpus[pp = {place}] for s in 0..{stages}
{schedule}(stage, 4{more})
"""
LAST = 'model["layers.1.1"]'


@pytest.mark.parametrize(
    ("schedule", "stages", "place", "more"),
    [
        ("gpipe", 3, "s", ""),
        ("one_f_one_b", 3, "s", ""),
        ("zb_h1", 3, "s", ""),
        ("schedule", 3, "s", ", ahead = [3, 2, 1], late = [0, 1, 2]"),
        ("interleaved", 4, "s % 2", ", 2"),
        ("zb_v", 4, "min(s, 3 - s)", ""),
    ],
)
@pytest.mark.parametrize("empty", ["first", "middle"])
def test_a_schedule_passes_an_empty_stage(schedule: str, stages: int, place: str, more: str, empty: str) -> None:
    begins = ['"layers.0.0"' if empty == "first" else '"layers.1.0"', '"layers.1.0"', LAST][: stages - 1]
    devices = 3 if stages == 3 else 2
    text = STAGES.format(
        schedule=schedule, stages=stages, devices=devices, place=place, more=more, before=", ".join(begins)
    )
    model, graph = captured("tiny.py:chain")
    outcome = try_plan(model, graph, text, Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text


PLANS = {
    "chimera": """\
use pipeline: chimera, opposite
mesh gpus(pp = 4)
split model by batch into way = 2, m = 2
let half = balance(model, 3)
let stage = [half[0], half[1], half[1] - model, half[2]]
opposite(stage, [gpus[pp = s] for s in 0..4])
chimera(stage, 2)
""",
    "statements": """\
use pipeline: one_f_one_b
mesh gpus(pp = 4, dp = 2)
let stage = cut(model, 4, before = ["layers.1.0", "layers.1.0", "."])
for s in 0..4:
    split stage[s] by batch into m = 4, dp
    split stage[s].optimizer by row into dp
    assign stage[s] to gpus[pp = s]
    recompute stage[s]["layers.*"]
    prefetch stage[s] by 3
    bucket stage[s].grads by 1
recompute [stage[1]]
one_f_one_b(stage, 4)
""",
}


@pytest.mark.parametrize("plan", PLANS)
def test_statements_about_an_empty_stage_say_nothing(plan: str) -> None:
    """The last stage of the second plan is the loss, which has no weights and no layers."""
    model, graph = captured("tiny.py:chain")
    outcome = try_plan(model, graph, PLANS[plan], Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text
