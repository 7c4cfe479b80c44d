"""Weights in parts that stay once they are gathered: the same numbers, with the traffic that the papers say."""

from collections import Counter
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan, compile_source
from ssdsl.runtime.options import Training
from ssdsl.show.tables.communication import communications
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:tiny,layers=4,hidden=32,heads=4,seq=8,batch=8,vocab=31"
EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH = """
mesh gpus(node = 2, local = 2)
split model by batch into node, local, m = 2
assign model to gpus
split model.weights by row into node, local
"""
STAGES = """
use pipeline: zb_h1
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 4
split model.weights by row into dp
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
zb_h1(stage, 4)
"""
KEPT = {
    "hpz": BATCH + "keep model.weights by row into local through step",
    "hpz_recomputed": BATCH + 'keep model.weights by row into local through step\nrecompute model["h.*"]',
    "backward": BATCH + "keep model.weights through m in backward\nrecompute model",
    "finer_state": BATCH.replace("row into node, local", "row into local")
    + "split model.optimizer by row into node, local\nkeep model.weights through step",
    "halves": STAGES + "keep model.weights through m",
    "one_layer": STAGES + 'keep model["h.0"].weights through step in backward',
}


@pytest.mark.covering
@pytest.mark.parametrize("plan", KEPT)
def test_weights_that_stay_compute_the_same(plan: str) -> None:
    found = try_plan(*captured(GPT), KEPT[plan], Training(2, optimizer="adamw", clip=0.5))
    assert found.kind == "equal", found.text


def test_breadth_first_computes_the_same() -> None:
    text = (EXAMPLES / "breadth_first.ssp").read_text()
    found = try_plan(*captured(GPT), text, Training(2, optimizer="adamw", clip=0.5))
    assert found.kind == "equal", found.text


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_breadth_first_gathers_each_weight_twice_and_reduces_its_gradient_once(micro_batches: int) -> None:
    """Whatever the number of micro-batches; an embedding is not read in backward."""
    program = compile_plan(EXAMPLES / "breadth_first.ssp", graph_of(GPT), {"M": micro_batches}).program
    calls = Counter[tuple[str, str, str]]()
    for found in communications(program):
        if found.kind in ("all_gather", "reduce_scatter"):
            calls[found.kind, found.when, found.of] += found.calls
    layers = {(kind, when): n for (kind, when, of), n in calls.items() if "h.2" in of}
    gathers = {("all_gather", "weights, forward"): 1, ("all_gather", "weights, backward"): 1}
    assert layers == gathers | {("reduce_scatter", "gradients"): 1}
    assert {*calls.values()} <= {1, 2}  # 2: of a tied weight, on both of its devices


def test_simulated_traffic_is_that_of_the_table() -> None:
    """Each device: gathers and reductions, whatever the order of the tasks."""
    found = compile_plan(EXAMPLES / "breadth_first.ssp", graph_of(GPT), {})
    report = simulate(found.program, found.source, load_cluster("h200x8"))
    for kind in ("all_gather", "reduce_scatter"):
        sent = sum(t.size_bytes for t in report.traffic if t.kind == kind)
        assert sent == sum(f.size_bytes * f.on.size for f in communications(found.program) if f.kind == kind)


def test_nothing_is_gathered_between_nodes_in_backward() -> None:
    program = compile_source(Source("plan.ssp", KEPT["hpz"]), graph_of(GPT), {}, Path()).program
    over = {(f.when, f.over) for f in communications(program) if f.kind == "all_gather"}
    assert {axes for when, axes in over if "backward" in when} == {("local",)}
    assert {axes for when, axes in over if "forward" in when} == {("local",), ("node", "local")}
