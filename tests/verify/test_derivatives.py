"""Derivatives in a forward are operators: plans cut them, and train as one device does."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.captured import captured

MODELS = Path(__file__).parent.parent / "models" / "derivatives.py"
STAGES = """
use pipeline: gpipe
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
gpipe(stage, 2)
"""


def cut(dim: str) -> str:
    return f"mesh gpus(a = 2)\nsplit model by {dim} into a\nassign model to gpus\n"


@pytest.mark.thinned(11)
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *(("residual", plan) for plan in (cut("batch"), cut("ffn"), STAGES)),
        *(("forces", plan) for plan in (cut("batch"), cut("atoms"))),
        *(("penalty", plan) for plan in (cut("height"), STAGES)),
        *(("inner", plan) for plan in (cut("batch"), cut("height"))),
        *(("curve", plan) for plan in (cut("batch"), cut("ffn"))),
        *(("tasks", plan) for plan in (cut("batch"), cut('"net.0.weight.0"'), cut("shot"), STAGES)),
        *(("attack", plan) for plan in (cut("batch"), STAGES)),
    ],
)
def test_they_are_cut_as_others_are(name: str, plan: str) -> None:
    model, graph = captured(f"{MODELS}:{name}")
    outcome = try_plan(model, graph, plan, Training(2, optimizer="adamw", lr=0.05))
    assert outcome.kind == "equal", outcome.text
