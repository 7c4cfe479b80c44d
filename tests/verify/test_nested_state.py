"""State in parts of parts: gradients and optimizer state over more devices than weights (hybrid sharding, ZeRO++)."""

from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.cluster.cluster import Cluster
from ssdsl.compile import compile_source
from ssdsl.ir.param import StateAxes
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=8,vocab=31"  # 31: weights of odd sizes
BATCH = """
mesh gpus(node = 2, gpu = 2)

split model by batch into node, gpu, m = 2
assign model to gpus
"""
TENSOR = """
mesh gpus(node = 2, gpu = 2, tp = 2)

split model by batch into node, gpu, m = 2
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""
STAGES = """
use pipeline: one_f_one_b

mesh gpus(pp = 2, node = 2, gpu = 2)

split model by batch into node, gpu, m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""
COPIES = """
mesh gpus(node = 2, gpu = 2, d = 2)

split model by batch into node, gpu
assign model to gpus
"""
RECOMPUTED = BATCH + 'recompute model["h.*"]\n'
W, G, O = (f"split model.{state} by row into {{}}\n" for state in ("weights", "grads", "optimizer"))  # noqa: E741
STATES = {
    "optimizer finer than weights": W.format("gpu") + O.format("node, gpu"),
    "gradients finer than weights": W.format("gpu") + G.format("node, gpu"),
    "optimizer finer than gradients": G.format("gpu") + O.format("node, gpu"),
    "weights, and over other nodes sums": W.format("gpu"),
}
THREE = W.format("tp") + G.format("gpu, tp") + O.format("node, gpu, tp")
PLANS = {
    "all weights on each device": BATCH,
    "tensor parallelism": TENSOR,
    "stages with a tied weight": STAGES,
    "recomputed layers": RECOMPUTED,
}


def program_of(text: str) -> Program:
    return compile_source(Source("plan.ssp", text), graph_of(GPT), {}, Path()).program


def outcome(text: str, cluster: Cluster | None = None) -> tuple[str, str]:
    found = try_plan(*captured(GPT), text, Training(2, optimizer="adamw", clip=0.5), cluster)
    return found.kind, found.text


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("state", STATES)
def test_state_in_nested_parts_computes_the_same(plan: str, state: str) -> None:
    kind, text = outcome(PLANS[plan] + STATES[state])
    assert kind == "equal", text


def test_three_states_over_three_axes_compute_the_same() -> None:
    text = "mesh gpus(node = 2, gpu = 2, tp = 2)\nsplit model by batch into node, gpu\nassign model to gpus\n" + THREE
    (sharded,) = {flat.sharded for flat in program_of(text).flats}
    assert sharded == StateAxes(("tp",), ("tp", "gpu"), ("tp", "gpu", "node"))
    kind, found = outcome(text)
    assert kind == "equal", found


@pytest.mark.parametrize("state", ["optimizer finer than weights", "weights, and over other nodes sums"])
def test_copies_that_share_a_reduction_compute_the_same(state: str) -> None:
    kind, text = outcome(COPIES + STATES[state], SLOW)
    assert kind == "equal", text


def test_a_device_holds_a_part_of_each_state() -> None:
    """Of w elements: w / 2 weights and gradients, w / 4 of the optimizer's state."""
    for flat in program_of(BATCH + STATES["optimizer finer than weights"]).flats:
        states = flat.sharded.weights, flat.sharded.grads, flat.sharded.optimizer
        assert [flat.elements // flat.elements_over(axes) for axes in states] == [2, 2, 4]
