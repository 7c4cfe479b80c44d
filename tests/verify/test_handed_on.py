"""A value goes to a device once: the first stage there that reads it hands it on to the others, and sends the sum of
their gradients back."""

from collections import Counter
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.comm import Transfer
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.verify.conftest import HERE, captured

MODEL = f"{HERE.parent / 'models' / 'depth_attention.py'}:net"
PLAN = """
use pipeline: interleaved, gpipe, zb_h1
mesh gpus(pp = 2, dp = {D})
let stage = [
    model["embed"] | model["layers.{{0-1}}"],
    model["layers.2"],
    model["layers.{{3-4}}"],
    model - model["embed"] - model["layers.{{0-4}}"],
]
split model by batch into dp, m = 4
{more}
assign stage[s] to gpus[pp = s % 2] for s in 0..4
{order}
"""
INTERLACED = "interleaved(stage, 4, 2)"
HALVES = "order stage[s].dgrad[m = k] -> stage[s].wgrad[m = k] for s in 0..4, k in 0..4"
PLANS = {
    "interleaved": PLAN.format(D=1, more="", order=INTERLACED),
    "replicas": PLAN.format(D=2, more="", order=INTERLACED),
    "recomputed": PLAN.format(D=1, more='recompute model["layers.*"]', order=INTERLACED),
    "halves": PLAN.format(D=1, more="", order=HALVES),
    "free": PLAN.format(D=1, more="", order=""),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("plan", PLANS)
def test_numbers_are_those_of_one_device(plan: str) -> None:
    outcome = try_plan(*captured(MODEL), PLANS[plan], Training(2, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text


def test_each_value_travels_once() -> None:
    program = compile_source(Source("plan.ssp", PLANS["interleaved"]), captured(MODEL)[1], {}, Path()).program
    sent = [m for m in program.messages if isinstance(m, Transfer)]
    assert Counter((m.value, str(m.target)) for m in sent).most_common(1)[0][1] == 1
    assert len(sent) == 6 and all(m.backward is not None for m in sent)


def test_stages_in_another_order_get_a_message_each() -> None:
    """Two branches on one device, of which none follows from the other: the plan may run either first."""
    text = """
mesh gpus(pp = 2)
let first = model["enter"]
split model by batch into m = 2
assign first to gpus[pp = 0]
assign model - first to gpus[pp = 1]
order model["right"].fwd[m = k] -> model["left"].fwd[m = k] for k in 0..2
"""
    spec = f"{HERE.parent / 'models' / 'depth_attention.py'}:branches"
    outcome = try_plan(*captured(spec), text, Training(2, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text
