"""Parts that a plan names have places, cuts and checkpoints of their own, and compute what a single device computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPPOSITE = """
mesh gpus(pp = 2)
split model by batch into way = 2, m = 2
let stage = balance(model, 2)
for s in 0..2:
    assign stage[s][way = 0] to gpus[pp = s]
    assign stage[s][way = 1] to gpus[pp = 1 - s]
"""
CHIMERA = """
use pipeline: chimera, opposite
mesh gpus(pp = 4)
split model by batch into way = 2, m = 2
let stage = balance(model, 4)
opposite(stage, [gpus[pp = s] for s in 0..4])
chimera(stage, 2)
"""
DUAL_PIPE = """
use pipeline: dual_pipe, opposite
mesh gpus(pp = 2, dp = 2)
split model by batch into way = 2, m = 2, dp
let stage = balance(model, 2)
opposite(stage, [gpus[pp = s] for s in 0..2])
split model.weights by row into dp
dual_pipe(stage, 2)
"""
UNLIKE_PIPELINES = """
mesh gpus(d = 3)
let long = balance(model, 2)
split model by batch into replica = [6, 2]
assign long[s][replica = 0] to gpus[d = s] for s in 0..2
assign model[replica = 1] to gpus[d = 2]
"""
UNLIKE_MESHES = """
use pipeline: unlike
let widths = [2, 1]
mesh gpus(tp = widths[k]) for k in 0..2
unlike(model, [5, 3], gpus)
split model by heads into tp
split model by ffn into tp
split model.optimizer by row into tp
"""
OTHER_CUTS = """
mesh gpus(d = 2)
split model by batch into m = [2, 6]
split model[m = 0] by seq into d
split model[m = 1] by batch into d
assign model to gpus
"""
OF_AN_AXIS = """
mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split model[dp = 0] by heads into tp
split model[dp = 0] by ffn into tp
split model[dp = 1] by seq into tp
assign model to gpus
"""
SOME_RECOMPUTED = """
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into m = 4, dp
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute stage[0][m = m] for m in [0, 2]
one_f_one_b(stage, 4)
"""
NESTED = """
mesh gpus(pp = 2)
split model by batch into way = 2
split model[way = 1] by batch into k = 2
let stage = balance(model, 2)
for s in 0..2:
    assign stage[s][way = 0] to gpus[pp = s]
    assign stage[s][way = 1][k = 0] to gpus[pp = 1 - s]
    assign stage[s][way = 1][k = 1] to gpus[pp = s]
"""
ALL = {name: text for name, text in globals().items() if name.isupper() and isinstance(text, str)}


@pytest.mark.covering
@pytest.mark.parametrize("model", ["gpt:tiny,hidden=32,seq=16,vocab=64,dropout=0.1", "swin"])
@pytest.mark.parametrize("name", ALL)
def test_parts_by_name_train_as_one_device(program: Callable[..., Any], tmp_path: Path, name: str, model: str) -> None:
    plan = tmp_path / "plan.ssp"
    plan.write_text(ALL[name].replace("by seq", "by window") if model == "swin" else ALL[name])
    program(plan, model).verify()


def test_a_loss_in_parts_waits_for_none(program: Callable[..., Any], tmp_path: Path) -> None:
    """Each part's backward may run before the other's forward: the loss is never added up within a step."""
    plan = tmp_path / "plan.ssp"
    plan.write_text(OPPOSITE + "order stage[1].bwd[way = 0] -> stage[1].fwd[way = 1]\n")
    compiled = program(plan).compiled
    assert len(compiled.program.losses) == 2
    program(plan).verify()
