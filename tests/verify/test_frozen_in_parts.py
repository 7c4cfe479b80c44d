"""Weights that are not trained are stored in parts, gathered before use, and again in backward."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured

MODEL = "adapters.py:adapters"
IN_PARTS = "split model.weights by row into dp\n"
DATA = f"mesh gpus(dp = 2)\nsplit model by batch into dp\n{IN_PARTS}assign model to gpus\n"
PLANS = {
    "data": DATA,
    "tensor": DATA.replace("dp = 2", "dp = 2, tp = 2") + "split model by hidden into tp where possible\n",
    "named": DATA.replace("model.weights", 'model["base"].weights'),
    "recomputed": DATA + 'recompute model["out"]\n',
    "nodes": DATA.replace("dp = 2", "node = 2, dp = 2") + "split model by batch into node\n",
    "stages": f"""
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 2
{IN_PARTS}let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
""",
}


def program(plan: str) -> Program:
    return compile_source(Source("plan.ssp", plan), captured(MODEL)[1], {}, Path(__file__).parent).program


@pytest.mark.parametrize("plan", PLANS)
def test_plans_train_as_one_device(plan: str) -> None:
    model, graph = captured(MODEL)
    outcome = try_plan(model, graph, PLANS[plan], Training(2, optimizer="adamw", lr=0.05))
    assert outcome.kind == "equal", outcome.text


def test_a_device_has_its_part_of_what_the_devices_divide() -> None:
    frozen = {p.weight: p for p in program(DATA).params if not p.trained}
    whole = {name for name, param in frozen.items() if param.elements == param.shape.numel}
    assert whole == {"odd.bias"}  # of 15 numbers
    assert all(2 * p.elements == p.shape.numel for name, p in frozen.items() if name not in whole)
    assert [axis[0] for axis in frozen["qkv.weight"].shape.axes] == [3, 16]  # two devices do not divide q, k and v
    assert frozen["qkv.weight"].layout.shards()[0].factor == 1  # but heads


def test_backward_gathers_what_it_needs_again() -> None:
    (function,) = program(DATA).functions
    gathers = {i.result.name.value: i.again for i in function.body() if isinstance(i, Conversion)}
    assert {name for name, again in gathers.items() if again} == {"mix.weight", "odd.weight"}
