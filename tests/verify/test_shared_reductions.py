"""Copies of weights share the reduction of their gradient where that takes slow links less, and compute the same."""

from pathlib import Path

import pytest
import torch

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.compile import compile_resized, compile_source
from ssdsl.ir.comm import AllGather, AllReduce, Narrow
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.ir.text.comm import completion_text
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=8,vocab=31"  # 31: weights of odd sizes
DATA = """
mesh gpus(dp = 2, d = 2)

split model by batch into dp
assign model to gpus
"""
TENSOR = """
mesh gpus(dp = 2, tp = 2)

split model by batch into dp
split model by batch into m = 2
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""
TIED = """
use pipeline: one_f_one_b

mesh gpus(pp = 2, dp = 2, d = 2)

split model by batch into dp
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""
SHARDS = """
mesh gpus(node = 2, gpu = 2, d = 2)

split model by batch into node
split model by batch into gpu
split model.{state} by row into gpu
assign model to gpus
"""
VOLUMES = """
mesh gpus(dp = 2, h = 2)

split model by batch into dp
split model by height into h where possible
assign model to gpus
"""
STAGES = """
mesh gpus(dp = 2, pp = 2)

let wide = model["wte"] | model["lm_head"] | model.cross_entropy_loss

split model by batch into dp
split model by batch into m = 2
let stage = balance(model - wide, 2)
assign wide to gpus
assign stage[s] to gpus[pp = s] for s in 0..2
"""
SHARED = ("narrow<{0}>", "all_reduce<{1}>", "all_gather<{0}>")
PLANS = {
    "whole weights": (GPT, DATA, "d", "dp"),
    "norms of tensor parallelism": (GPT, TENSOR, "tp", "dp"),
    "tied weights": (GPT, TIED, "d", "dp"),
    "ZeRO-1": (GPT, SHARDS.format(state="optimizer"), "d", "node"),
    "ZeRO-2": (GPT, SHARDS.format(state="grads"), "d", "node"),
    "ZeRO-3": (GPT, SHARDS.format(state="weights"), "d", "node"),
    "layers that all stages have": (GPT, STAGES, "pp", "dp"),
    "layers behind volumes": ("cosmoflow:tiny", VOLUMES, "h", "dp"),
}


def compiled(graph, text: str, cluster) -> Program:
    return compile_source(Source("plan.ssp", text), graph, {}, Path(), cluster).program


def completions(program: Program) -> set[tuple[str, ...]]:
    return {tuple(map(completion_text, flat.completion.steps)) for flat in program.flats}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", PLANS)
def test_each_copy_reduces_a_part(name: str) -> None:
    spec, text, copies, summed = PLANS[name]
    model, graph = captured(spec)
    alone = compiled(graph, text, None).flats
    assert not any(isinstance(step, AllGather) for flat in alone for step in flat.completion.awaited)
    steps = tuple(step.format(copies, summed) for step in SHARED)
    found = completions(compiled(graph, text, SLOW))
    assert any(steps == tuple(s for s in done if s in steps) for done in found), found
    outcome = try_plan(model, graph, text, Training(2, optimizer="adamw", clip=0.5), SLOW)
    assert outcome.kind == "equal", outcome.text


def test_copies_are_equal_to_the_bit() -> None:
    """In single precision, in which other orders of sums give other numbers."""
    model, graph = captured(GPT)
    program = compiled(graph, DATA, SLOW)
    assert {type(s) for f in program.flats for s in f.completion.steps} == {Narrow, AllReduce, AllGather}
    finished = run_in_process(program_of(program, model), Training(3, optimizer="sgd", lr=0.1), torch.float32)
    first, *others = (dump["weights"] for dump in finished.dumps.values())
    for other in others:
        assert all(torch.equal(first[name]["tensor"], piece["tensor"]) for name, piece in other.items())


@pytest.mark.parametrize("rows", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_of_another_size_shares_alike(rows: int) -> None:
    """The flat parameters are as long as the training program has them."""
    model, graph = captured(GPT)
    training = compile_source(Source("plan.ssp", DATA), graph, {}, Path(), SLOW)
    fewer = replace(model, batches=tuple({n: t[:rows] for n, t in batch.items()} for batch in model.batches))
    program = compile_resized(training, capture(fewer), SLOW).program
    assert [f.elements for f in program.flats] == [f.elements for f in training.program.flats]
    assert all(not f.completion.steps or f.completion.awaited for f in program.flats)
    sgd = Training(2, optimizer="sgd", lr=0.1)
    finished = run_in_process(program_of(program, fewer), sgd)
    assert difference(verify_dumps(fewer, sgd, finished.losses, finished.dumps)) is None


SUMS = """
mesh gpus(dp = 2, node = 2, gpu = 2)

split model by batch into dp
split model by heads into node
split model by heads into gpu
split model by ffn into node
split model by ffn into gpu
assign model to gpus
"""


def test_a_sum_over_two_axes_is_one_over_both() -> None:
    """A ring over the devices of two nodes has two links between them, one over a device of each has one."""
    model, graph = captured(GPT)
    program = compiled(graph, SUMS, SLOW)
    resharded = [i for f in program.functions for i in f.body() if isinstance(i, Conversion)]
    sums = {s.axes for i in resharded for s in (*i.forward, *i.backward) if isinstance(s, AllReduce)}
    assert sums == {("node", "gpu")}
    outcome = try_plan(model, graph, SUMS, Training(2, optimizer="sgd", lr=0.02), SLOW)
    assert outcome.kind == "equal", outcome.text
