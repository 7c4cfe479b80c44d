"""Evaluation equals the module in eval mode, before training and after, on the weights that training has."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.lang.read import read_source
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.run.verify.assemble import assemble
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.run.evaluating import evaluate

ROOT = Path(__file__).parent.parent.parent
GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64,dropout=0.1"
SCORED = f"{ROOT / 'tests' / 'models' / 'scored.py'}:net"

STAGES = """
mesh gpus(pp = 3, dp = 2)

let last = model["head"] | model["aux"] | model["."]

split model by batch into dp
split model["stages.*.conv"] by batch into m = 2
assign model["stages.0"] to gpus[pp = 0]
assign model["stages.1"] to gpus[pp = 1]
assign model["stages.2"] | last to gpus[pp = 2]
"""
IN_TIME = """
mesh gpus(tp = 2)

split model["head"] | model["."] by batch into m = [5, 3]
split model["stages.*.conv"] by channel into tp where possible
assign model to gpus
"""
DROPOUT_NAMED = """
mesh gpus(dp = 2, tp = 2)

split model.dropout by batch into dp
split model - model.dropout by batch into dp
split model["head"] by classes into tp
assign model to gpus
"""


@pytest.fixture(scope="module")
def gpt() -> tuple[Model, Graph]:
    model = load(GPT)
    return model, capture(model)


@pytest.fixture(scope="module")
def scored() -> tuple[Model, Graph]:
    model = load(SCORED)
    return model, capture(model)


def _example(name: str) -> Source:
    return read_source(ROOT / "examples" / f"{name}.ssp")


def _compiled(given: tuple[Model, Graph], source: Source, **params: int) -> Compiled:
    return compile_source(source, given[1], params, ROOT / "examples")


def _check(given: tuple[Model, Graph], training: Compiled, *outputs: str) -> None:
    """Evaluated before any step and behind two; the single device has the weights and statistics of the ranks."""
    model = given[0]
    found = evaluate(training, compile_evaluation(training, model, outputs), model, steps=2)
    module = copy.deepcopy(model.module).eval()
    for when, (loss, tensors) in enumerate(zip(found.losses, found.outputs, strict=True)):
        if when:
            for what in ("weights", "buffers"):
                held = assemble(what, {rank: state[what] for rank, state in found.states.items()})
                module.load_state_dict(held.tensors, strict=False)
        with torch.no_grad():
            wanted: Any = module(**model.batches[0])
        torch.testing.assert_close(torch.tensor(loss), wanted.loss.float(), rtol=1e-5, atol=1e-6)
        assert list(tensors) == list(outputs)
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, getattr(wanted, name), rtol=1e-4, atol=1e-5)
    assert found.losses[0] != found.losses[1]


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    ("plan", "params"),
    [
        ("data_parallel", {}),
        ("megatron", {"D": 2}),
        ("zero", {"Z": 1}),
        ("zero", {"Z": 3}),
        ("sequence_parallel", {}),
        ("zero_bubble", {}),
        ("interleaved", {}),
    ],
    ids=str,
)
def test_gpt_with_dropout(gpt: tuple[Model, Graph], plan: str, params: dict[str, int]) -> None:
    _check(gpt, _compiled(gpt, _example(plan), **params), "logits")


@pytest.mark.parametrize("plan", [_example("data_parallel"), Source("stages.ssp", STAGES)], ids=lambda s: s.name[-12:])
def test_batch_norm_and_outputs(scored: tuple[Model, Graph], plan: Source) -> None:
    """Running statistics are those that training left; a sum over the batch is complete."""
    _check(scored, _compiled(scored, plan), "logits", "pooled", "total")


def test_parts_in_time_are_joined_and_summed(scored: tuple[Model, Graph]) -> None:
    """Micro-batches of unequal sizes leave parts of the logits, and addends of their sum."""
    training = _compiled(scored, Source("time.ssp", IN_TIME))
    table = json.loads(
        program_files(compile_evaluation(training, scored[0], ["logits", "total"]).program)["program.json"]
    )
    logits, total = table["outputs"]
    assert (logits["takes"], logits["sums"]) == ([["m", 0, 1, [[[0, 5]], [[5, 8]]]]], [])
    assert (total["takes"], total["sums"]) == ([], ["m"])
    _check(scored, training, "logits", "total")


def test_a_model_without_numbers() -> None:
    """It compiles; ranks have the parts that they train."""
    model = load(f"{GPT},batch=4", meta=True)
    training = compile_source(_example("megatron"), capture(model), {}, ROOT / "examples")
    program = compile_evaluation(training, model, ["logits"]).program
    assert [r.name for r in program.results] == ["logits"]
    assert program.params == training.program.params


def test_a_plan_may_name_what_only_training_has(scored: tuple[Model, Graph]) -> None:
    _check(scored, _compiled(scored, Source("named.ssp", DROPOUT_NAMED)), "logits")
