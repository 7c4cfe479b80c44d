"""What is recomputed in tasks of its own computes what one device does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EARLY = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute stage
one_f_one_b(stage, 4)
order stage[0].again[m = 0] -> stage[0].fwd[m = 2]
order stage[1].again[m = 1] -> stage[1].bwd[m = 1]
"""
TURNS = """
mesh gpus(dp = 2)
split model by batch into dp, m = 2
split model by heads into c = 2
split model by ffn into c = 2
recompute model["h.*"]
recompute model[c = any]
assign model to gpus
"""
TURNS_OF_TP = """
mesh gpus(tp = 2)
split model by batch into m = 2
split model by heads into tp, c = 2
split model by ffn into tp, c = 2
recompute model[c = any]
recompute model["h.*"]
assign model to gpus
"""
ZERO3 = """
mesh gpus(dp = 2, tp = 2)
split model by batch into dp, m = 2
split model by heads into tp
split model by ffn into tp
split model[tp = none] by seq into tp
split model.weights by row into dp
recompute model["h.*"]
recompute model["h.*.mlp"]
assign model to gpus
"""
HALVES = """
use pipeline: zb_h1
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute stage
zb_h1(stage, 4)
order stage[1].again[m = 0] -> stage[1].dgrad[m = 0]
order stage[0].again -> stage[0].dgrad
"""
SLICES = """
mesh gpus(pp = 2)
split model by batch into m = 2
split model by seq into t = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute stage
order stage[s].again -> stage[s].bwd for s in 0..2
"""
PARTS_OF_LAYERS = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute model["h.*"]
recompute model["h.*.mlp"]
one_f_one_b(stage, 4)
"""
ACROSS_STAGES = """
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute [model["h.*"]]
recompute model["h.*.mlp"]
"""
BY_CLOCK = """
mesh gpus(pp = 1)
split model by batch into m = 2
recompute model
assign model to gpus
order by clock:
    model.fwd[m = 0] at 0
    model.fwd[m = 1] at 1
    model.again[m = 1] at 2
    model.again[m = 0] at 3
    model.bwd[m = 0] at 4
    model.bwd[m = 1] at 5
"""
BY_NAME = """
mesh gpus(pp = 2)
split model by batch into way = 2, m = 2
let stage = balance(model, 2)
for s in 0..2:
    assign stage[s][way = 0] to gpus[pp = s]
    assign stage[s][way = 1] to gpus[pp = 1 - s]
recompute stage
order stage[0].again[way = 1] -> stage[0].bwd[way = 1]
"""
PLANS = {k: v for k, v in globals().items() if k.isupper() and isinstance(v, str)}


@pytest.mark.covering
@pytest.mark.parametrize("model", ["gpt:tiny,hidden=32,seq=16,vocab=64,dropout=0.1", "swin"])
@pytest.mark.parametrize("name", PLANS)
def test_a_second_forward_computes_the_same(program: Callable[..., Any], tmp_path: Path, name: str, model: str) -> None:
    plan = tmp_path / "plan.ssp"
    text = PLANS[name]
    if model == "swin":
        text = text.replace("by seq", "by window").replace("h.*", "*.blocks.*")
    plan.write_text(text)
    made = program(plan, model)
    assert any(f.again is not None for f in made.compiled.program.functions)
    made.verify()


def test_runs_of_gathered_weights_are_copied(program: Callable[..., Any], tmp_path: Path) -> None:
    """Backward gathers no weight again of which each part was copied, where the next module is recomputed."""
    plan = tmp_path / "plan.ssp"
    plan.write_text(
        'mesh gpus(tp = 2)\nsplit model by "q.weight.0_inner1" into c = 2\nassign model to gpus\n'
        'recompute model["q"]\nsplit model.weights by row into tp\n'
    )
    program(plan, "inner_heads.py:net").verify()
