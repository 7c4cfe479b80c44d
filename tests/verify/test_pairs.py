"""Rows of a batch that a loss compares: parts with whole pairs are parts like any other."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.verify.conftest import ROOT, TRAINING, captured

PIPELINE = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by {} into m = 4
let stage = [model["first"], model - model["first"]]
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 4)
"""
DEVICES = """
mesh gpus(dp = {})
split model by batch into dp
split model.weights by row into dp
assign model to gpus
"""
FEATURES = "mesh gpus(tp = 4)\nsplit model by ffn into tp\nassign model to gpus\n"
IN_TIME = "mesh gpus(dp = 1)\nsplit model by batch into m = {}\nassign model to gpus\n"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("strided", PIPELINE.format("batch")),
        ("halves", PIPELINE.format("batch_inner1")),
        *((how, DEVICES.format(8)) for how in ("strided", "halves", "groups")),
        ("groups", DEVICES.format(2)),
        ("alternating", FEATURES),
    ],
)
def test_numbers_are_those_of_one_device(how: str, text: str) -> None:
    model, graph = captured(f"pairs.py:{how}")
    outcome = try_plan(model, graph, text, TRAINING)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(
    ("how", "count", "helps"),
    [
        ("halves", 4, "`split model by batch_inner1 into m = 4`"),
        ("groups", 8, "`split model by batch into m = 2` and `split model by batch_inner1 into m_2 = 4`"),
    ],
)
def test_a_batch_that_is_taken_apart_is_said_with_the_line(how: str, count: int, helps: str) -> None:
    with pytest.raises(PlanError) as caught:
        compile_source(Source("plan.ssp", IN_TIME.format(count)), captured(f"pairs.py:{how}")[1], {}, ROOT)
    (found,) = caught.value.diagnostics
    said = " ".join(render(found).split())
    assert "have batch = 2 inside of it is `batch_inner1` = 4" in said
    line = {"halves": "`split` (pairs.py:20)", "groups": "`reshape` (pairs.py:18)"}[how]
    assert f"{line} takes an axis of 8 apart" in said
    assert helps in said
    followed = IN_TIME.format(count).replace(
        f"split model by batch into m = {count}", "\n".join(helps.split("`")[1::2])
    )
    model, graph = captured(f"pairs.py:{how}")
    assert try_plan(model, graph, followed, TRAINING).kind == "equal"
