"""What several devices hold whole goes over slow links in shares, and computes the same."""

from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.comm import AllGather, Transfer
from ssdsl.ir.function import Reshard
from ssdsl.ir.program import Program
from ssdsl.model.load import load
from ssdsl.model.trace import capture
from ssdsl.run.launch import Training
from ssdsl.text.source import Source

MODEL = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=4,vocab=32"
PLAN = """
use pipeline: {schedule}

mesh gpus(pp = 2, tp = 2)

split model by batch into m = 2
split model by heads into tp
split model by ffn into tp
{more}
let stage = balance(model, 2)

assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 2)
"""


@pytest.fixture(scope="module")
def model():
    return load(MODEL)


def compiled(model, text: str, cluster) -> Program:
    return compile_source(Source("plan.ssp", text), capture(model), {}, Path(), cluster).program


def sent(program: Program) -> int:
    """Elements that a device sends of the activation that goes from one stage to the other."""
    (moved,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    assert moved.backward is not None
    assert moved.backward.source_shape == moved.forward.target_shape
    return moved.forward.target_shape.numel


def gathers(program: Program) -> int:
    steps = [
        s for f in program.functions for i in f.body() if isinstance(i, Reshard) for s in (*i.forward, *i.backward)
    ]
    return sum(isinstance(s, AllGather) for s in steps)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_each_device_sends_a_share(model, schedule: str) -> None:
    text = PLAN.format(schedule=schedule, more="")
    plain, shared = (compiled(model, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == 2 * 8 * 32 and sent(shared) == sent(plain) // 2
    assert gathers(shared) == gathers(plain) + 2  # of the activation there, of its gradient here
    outcome = try_plan(model, capture(model), text, Training(2, optimizer="sgd", lr=0.02), SLOW)
    assert outcome.kind == "equal", outcome.text


def test_what_is_cut_already_stays_as_it_is(model) -> None:
    """With sequence parallelism each device holds its own part."""
    more = "use sequence_parallel: sequence_parallel\nsequence_parallel(model)"
    text = PLAN.format(schedule="one_f_one_b", more=more)
    plain, shared = (compiled(model, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == sent(shared) == 2 * 8 * 32 // 2
