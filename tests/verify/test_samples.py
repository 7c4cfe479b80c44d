"""What is computed of each sample by itself is split by the batch, also in a pipeline of micro-batches."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import captured

TRAINING = Training(2, optimizer="adamw", lr=0.05)
STAGES = """
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""


@pytest.mark.parametrize("name", ["transformer", "normal"])
def test_micro_batches_do_not_wait_for_each_other(name: str) -> None:
    outcome = try_plan(*captured(f"samples.py:{name}"), STAGES, TRAINING)
    assert outcome.kind == "equal", outcome.text


def test_points_of_a_grid_are_cut_in_space() -> None:
    plan = "mesh gpus(sp = 2)\nsplit model by height into sp\nassign model to gpus\n"
    outcome = try_plan(*captured("samples.py:transformer"), plan, TRAINING)
    assert outcome.kind == "equal", outcome.text
