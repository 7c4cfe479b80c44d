"""Each row picks its own elements, so that rows split: in process, against one device."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.models.indexed import READS
from tests.verify.conftest import captured

PIPELINE = """\
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    "spec", [*(f"indexed.py:net_{r.__name__}" for r in READS), "classifiers.py:gpt2", "classifiers.py:llama"]
)
def test_rows_pick_their_own_under_a_pipeline(spec: str) -> None:
    model, graph = captured(spec)
    outcome = try_plan(model, graph, PIPELINE, Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text


def test_an_index_is_a_gather() -> None:
    _, graph = captured("indexed.py:net_last_token")
    (gather,) = (o for o in graph.operators if o.kind == "gather")
    assert "index" not in {o.kind for o in graph.operators}
    assert next(d.name for d in gather.dims if not d.fixed) == "batch"
