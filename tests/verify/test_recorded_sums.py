"""Buffers that take a sum over the batch have that of the whole batch, however a plan cuts it."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import HERE, captured

PIPELINE = """
use pipeline: {schedule}
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by batch into m = 4
{more}
assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 4)
"""
PLANS = {
    "in time": "mesh gpus(dp = 1)\nsplit model by batch into m = 2\nassign model to gpus\n",
    "unequal": "mesh gpus(dp = 1)\nsplit model by batch into m = [5, 3]\nassign model to gpus\n",
    "both": "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n",
    "sequence": "mesh gpus(sp = 2)\nsplit model by seq into sp\nsplit model by batch into m = 2\n"
    "assign model to gpus\n",
    "gpipe": PIPELINE.format(schedule="gpipe", more='recompute model["layers.*"]'),
    "1f1b": PIPELINE.format(schedule="one_f_one_b", more=""),
    "halves": PIPELINE.format(schedule="zb_h1", more=""),
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_recorded_sum_is_that_of_the_whole_batch(plan: str) -> None:
    model, graph = captured(f"{HERE.parent / 'models' / 'recorded.py'}:recorded")
    outcome = try_plan(model, graph, PLANS[plan], Training(2, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text
