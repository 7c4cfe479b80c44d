"""Attention whose heads of queries share heads of keys, cut over more devices than there are heads of keys."""

import pytest

from bench.fuzz.trial import try_plan
from tests.verify.conftest import TRAINING, captured

BY_GROUP = """
mesh gpus(kv = 2, rep = 2)
split model by heads into kv
split model by heads_per_group into rep
split model by ffn into kv, rep
assign model to gpus
"""


@pytest.mark.parametrize("how", ["given", "interleaved", "expanded"])
def test_the_queries_of_a_key_may_be_cut(how: str) -> None:
    model, graph = captured(f"shared_keys.py:{how}")
    outcome = try_plan(model, graph, BY_GROUP, TRAINING)
    assert outcome.kind == "equal", outcome.text
    attention = next(o for o in graph.operators if o.kind == "scaled_dot_product_attention")
    assert {(d.name, d.size, bool(d.fixed)) for d in attention.dims} >= {
        ("heads", 2, False),
        ("heads_per_group", 4, False),
    }
