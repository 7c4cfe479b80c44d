"""Functions with gradients of their own, in process, against one device."""

from typing import Any

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import captured

PIPELINE = """use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 4)
"""
PLANS = {
    "batch": "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n",
    "unequal": "mesh gpus(dp = 3)\nsplit model by batch into dp = [4, 3, 1]\nassign model to gpus\n",
    "tensors": "mesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\nsplit model by heads into tp\n"
    "split model by ffn into tp\nassign model to gpus\n",
    "vocabulary": "mesh gpus(tp = 2)\nsplit model by vocab into tp\nassign model to gpus\n",
    "sharded": "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nsplit model.weights by row into dp\n"
    'recompute model["blocks.*"]\nassign model to gpus\n',
    "pipeline": PIPELINE,
    "halves": PIPELINE.replace("one_f_one_b", "zb_h1"),
}
SMALL = "reversed_gradient clipped fused quantised scanned by_hand nested penalised casting".split()


def tried(name: str, plan: str) -> None:
    outcome = try_plan(*captured(f"own_gradients.py:{name}"), PLANS[plan], Training(2, optimizer="sgd", lr=0.05))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.thinned(9)
@pytest.mark.parametrize("plan", PLANS)
def test_layers_with_their_own_backwards(plan: str) -> None:
    tried("summed", plan)


@pytest.mark.thinned(14)
@pytest.mark.parametrize("plan", ["batch", "unequal", "sharded", "pipeline"])
@pytest.mark.parametrize("name", ["averaged", "by_rows"])
def test_means_of_parts_add_up(name: str, plan: str) -> None:
    tried(name, plan)


def test_a_mean_is_a_sum_over_the_global_count() -> None:
    def rule(name: str) -> Any:
        _, graph = captured(f"own_gradients.py:{name}")
        found = next(o for o in graph.operators if o.kind in ("FusedCE", "RowMean"))
        target, *args = found.args
        return target.bound(args, {})["times"]

    assert rule("averaged") == "target != -100"
    assert rule("by_rows") == "x.0 x.1"
    assert rule("summed") == ""


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", SMALL)
def test_one_function(name: str) -> None:
    tried(name, "batch")
