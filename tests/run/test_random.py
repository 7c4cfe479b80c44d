"""What is drawn at random does not depend on the plan: dropout under every plan equals the single device."""

import functools
from pathlib import Path

import pytest
import torch

from ssdsl.compile import compile_plan, compile_source
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.single_device import reference
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.source import Source

ROOT = Path(__file__).parent.parent.parent
GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64,dropout=0.1"
NOISY = f"{ROOT}/tests/models/noisy.py:net"
TRAINING = Training(2, seed=5, optimizer="sgd", lr=0.05)
PLANS = {
    "data_parallel": {"D": 4},
    "tensor_parallel": {},
    "sequence_parallel": {},  # the sequence, in space
    "co_shard": {},  # heads and ffn, in time
    "uneven": {},  # micro-batches of unequal sizes
    "recomputed": {},
    "zero": {"Z": 3},
    "zero_bubble": {},  # pipelines, and backward in halves
    "v_shaped": {},
    "ulysses": {},  # an exchange of heads and sequence
}


@functools.cache
def captured(spec: str, generator: Generator) -> tuple[Model, Graph]:
    model = replace(load(spec), generator=generator)
    return model, capture(model)


def path_of(plan: str) -> Path:
    return next(p for f in ("examples", "tests/verify/plans") if (p := ROOT / f / f"{plan}.ssp").exists())


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    ("plan", "generator"), [*((plan, "hash") for plan in PLANS), ("sequence_parallel", "philox"), ("uneven", "philox")]
)
def test_dropout_under_a_plan_equals_the_single_device(plan: str, generator: Generator) -> None:
    model, graph = captured(GPT, generator)
    program = program_of(compile_plan(path_of(plan), graph, PLANS[plan]).program, model)
    finished = run_in_process(program, TRAINING)
    assert difference(verify_dumps(model, TRAINING, finished.losses, finished.dumps)) is None


NOISY_PLANS = {
    "data": "mesh gpus(dp = 3)\nsplit model by batch into dp\nassign model to gpus\n",
    "micro-batches": "mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model by batch into m = 3\n"
    "assign model to gpus\n",
    "unequal": "mesh gpus(dp = 1)\nsplit model by batch into m = [3, 1, 2]\nassign model to gpus\n",
}


@pytest.mark.parametrize("plan", NOISY_PLANS)
def test_every_way_to_draw(plan: str) -> None:
    model, graph = captured(NOISY, "hash")
    check_capture(model, graph)
    compiled = compile_source(Source("plan.ssp", NOISY_PLANS[plan]), graph, {}, None)
    finished = run_in_process(program_of(compiled.program, model), TRAINING)
    assert difference(verify_dumps(model, TRAINING, finished.losses, finished.dumps)) is None


def test_numbers_depend_on_the_seed_the_step_and_the_generator() -> None:
    model, _ = captured(GPT, "hash")
    model = replace(model, batches=model.batches[:1])
    still = replace(TRAINING, lr=0.0, steps=2)
    first, second = reference(model, still).losses
    assert first != second, "the same batch and weights in another step"
    assert reference(model, replace(still, seed=6)).losses[0] != first
    assert reference(replace(model, generator="philox"), still).losses[0] != first
    torch.rand(7)  # what else is drawn has no part in it
    assert reference(model, still).losses == (first, second)
