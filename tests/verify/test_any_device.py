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
PARTS = {k: v for k, v in globals().items() if k.isupper() and isinstance(v, str)}


@pytest.mark.covering
@pytest.mark.parametrize("model", ["gpt:tiny,hidden=32,seq=16,vocab=64,dropout=0.1", "swin"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_by_name_train_as_one_device(program: Callable[..., Any], tmp_path: Path, name: str, model: str) -> None:
    plan = tmp_path / "plan.ssp"
    plan.write_text(PARTS[name].replace("by seq", "by window") if model == "swin" else PARTS[name])
    program(plan, model).verify()


def test_a_loss_in_parts_waits_for_none(program: Callable[..., Any], tmp_path: Path) -> None:
    """Each part's backward may run before the other's forward: the loss is never added up within a step."""
    plan = tmp_path / "plan.ssp"
    plan.write_text(OPPOSITE + "order stage[1].bwd[way = 0] -> stage[1].fwd[way = 1]\n")
    compiled = program(plan).compiled
    assert len(compiled.program.losses) == 2
    program(plan).verify()


EMBEDDING_OVER_ALL = """
mesh gpus(dp = 2, tp = 2)
mesh rows(x = 4) on gpus
mesh last(tp = 2) on gpus[dp = 1]
let ends = model["wte"] | model["wpe"]
split model["wte"] by vocab into x
split model["h.*"] by batch into m = 2, dp
split model["h.*"] by heads into tp
split model["h.*"] by ffn into tp
split model["lm_head"] by vocab into tp
assign ends to rows
assign model["h.*"] to gpus
assign model - ends - model["h.*"] to last
"""
OTHER_AXES = """
mesh gpus(d = 4)
mesh squares(dp = 2, tp = 2) on gpus
mesh lines(dp = 4) on gpus
let stage = balance(model, 2)
split stage[0] by heads into tp
split stage[0] by ffn into tp
assign stage[0] to squares
assign stage[1] to lines
split model by batch into dp
split model.weights by row into dp
"""
THREE_READERS = """
mesh gpus(d = 4)
mesh two(t = 2) on gpus[d = 2], gpus[d = 3]
let rest = model - model["wte"] - model["lm_head"]
split model["wte"] by vocab into d
split model["lm_head"] by vocab into t
split rest by batch into m = 2
assign model["wte"] to gpus
assign model["lm_head"] to two
assign rest to gpus[d = 1]
"""


@pytest.mark.parametrize("text", [EMBEDDING_OVER_ALL, OTHER_AXES, THREE_READERS])
def test_meshes_and_weights_share_devices(program: Callable[..., Any], tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.ssp"
    plan.write_text(text)
    program(plan).verify()


COMPUTED_TWICE = """
mesh gpus(pp = 2)
split model by batch into m = 2
let shared = model["wte"] | model["wpe"] | model["h.0"]
let left = model["h.1.ln_1"] | model["h.1.attn"]
assign shared to gpus[pp = 0], gpus[pp = 1]
assign left to gpus[pp = 0]
assign model - shared - left to gpus[pp = 1]
"""


def test_an_operator_in_two_places_is_sent_to_neither(program: Callable[..., Any], tmp_path: Path) -> None:
    plan = tmp_path / "plan.ssp"
    plan.write_text(COMPUTED_TWICE)
    made = program(plan, "gpt:tiny,hidden=32,seq=16,vocab=64,dropout=0.1")
    places = {o.operator: str(f.submesh) for f in made.compiled.program.functions for o in f.operators()}
    assert [places[name] for name in ("layer_norm", "layer_norm_copy2")] == ["gpus[pp = 0]", "gpus[pp = 1]"]
    made.verify()
