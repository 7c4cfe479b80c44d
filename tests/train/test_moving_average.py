"""Frozen weights that the forward makes of trained ones, step by step: equal to one device under every kind of plan."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.captured import captured

MODEL = f"{Path(__file__).parent.parent / 'models' / 'tiny.py'}:teacher"
PLANS = {
    "weights_in_parts": """\
mesh gpus(dp = 2)
split model by batch into dp, m = 2
split model.optimizer by row into dp
split model.grads by row into dp
split model.weights by row into dp
recompute model
assign model to gpus
""",
    "stages": """\
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    "columns": """\
mesh gpus(tp = 2)
split model by "online.0.weight.0" into tp where possible
assign model to gpus
""",
    "teacher_elsewhere": """\
mesh gpus(pp = 2)
assign model - model["teacher"] to gpus[pp = 0]
assign model["teacher"] to gpus[pp = 1]
""",
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_teacher_is_what_one_device_makes(plan: str) -> None:
    outcome = try_plan(*captured(MODEL), PLANS[plan], Training(3, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text
