"""Weights in parts of unequal sizes, in process, against one device; each device has its part and no more."""

import math
from typing import Any

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.ir.layout import Layout, Shard
from ssdsl.ir.program import Program
from ssdsl.model.load.model import Model
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.flat_params import FlatWeights
from ssdsl.runtime.step.weights import Weights
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.verify.conftest import HERE, captured, program_of_text

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,vocab=64"
FFN = "split model by ffn into tp = [100, 27, 1]\n"
HEADS = "split model by heads into tp = [2, 1, 1]\n"
VOCAB = "split model by vocab into tp = [20, 4, 40]\n"
TENSOR = HEADS + FFN + VOCAB
DATA = "split model by batch into dp\n"
ALL = "assign model to gpus\n"


def zero(stage: int) -> str:
    return "".join(f"split model.{s} by row into dp\n" for s in ("optimizer", "grads", "weights")[:stage])


STAGES = "let stage = balance(model, 2)\nassign stage[s] to gpus[pp = s] for s in 0..2\n"
PLANS = {
    "ffn": f"mesh gpus(tp = 3)\n{FFN}{ALL}",
    "heads": f"mesh gpus(tp = 3)\n{HEADS}{ALL}",
    "vocab": f"mesh gpus(tp = 3)\n{VOCAB}{ALL}",
    "hidden": f"mesh gpus(tp = 2)\nsplit model by hidden into tp = [20, 12] where possible\n{ALL}",
    "tensor": f"mesh gpus(tp = 3)\n{TENSOR}{ALL}",
    "zero1": f"mesh gpus(dp = 2, tp = 3)\n{DATA}{TENSOR}{ALL}{zero(1)}",
    "zero2": f"mesh gpus(dp = 2, tp = 3)\n{DATA}{TENSOR}{ALL}{zero(2)}",
    "zero3": f"mesh gpus(tp = 3, dp = 2)\n{DATA}{TENSOR}{ALL}{zero(3)}",
    "stages": f"mesh gpus(pp = 2, tp = 3)\n{TENSOR}{STAGES}",  # with a tied embedding
    "inside": f"mesh gpus(a = 2, b = 2)\nsplit model by ffn into a, b = [60, 4]\n{ALL}",
    "inside in time": f"mesh gpus(dp = 2)\nsplit model by batch into dp, m = [3, 1]\n{ALL}{zero(3)}",
    "both inside": f"mesh gpus(a = 2, b = 2)\nsplit model by ffn into a, b = [60, 4]\n"
    f"split model by batch into m = 2, t = [1, 3]\n{ALL}",
    "outside": f"mesh gpus(dp = 2)\nsplit model by batch into m = [6, 2], dp\n{ALL}{zero(3)}",
    "outside in space": f"mesh gpus(dp = 2)\nsplit model by batch into dp = [6, 2], m = 2\n{ALL}",
    "apart": f"mesh gpus(dp = 2)\nsplit model['h.0'] by batch into m = [6, 2]\nsplit model - model['h.0'] by batch "
    f"into dp, m = [3, 1]\n{ALL}".replace("'", '"'),
    "stages outside": f"use pipeline: one_f_one_b\nmesh gpus(pp = 2, dp = 2)\nsplit model by batch into m = [2, 4, 2]\n"
    f"{DATA}{STAGES}one_f_one_b(stage, 3)\n",
    "stages inside": f"use pipeline: one_f_one_b\nmesh gpus(pp = 2, dp = 2)\nsplit model by batch into dp, m = [3, 1]\n"
    f"{STAGES}one_f_one_b(stage, 2)\n",
    "micro": f"use pipeline: one_f_one_b\nmesh gpus(pp = 2, dp = 2, tp = 2)\nsplit model by batch into dp, m = 2\n"
    f"split model by ffn into tp = [100, 28]\n{STAGES}one_f_one_b(stage, 2)\n",
}


@pytest.mark.thinned(11)
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_numbers_are_those_of_one_device(text: str) -> None:
    model, graph = captured(GPT)
    outcome = try_plan(model, graph, text, Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text


def compiled(name: str) -> tuple[Model, Program]:
    model, graph = captured(GPT)
    return model, program_of_text(PLANS[name], graph)


SHARES = {"c_fc.weight": (100, 27, 1), "wte.weight": (20, 4, 40), "c_attn.bias": (2, 1, 1)}


REFUSED = {
    "runs": f"mesh gpus(a = 2, b = 2)\nsplit model by vocab into a, b = [30, 2]\n{ALL}",
    "outside": f"mesh gpus(a = 2, b = 2)\nsplit model by vocab into a = [60, 4], b\n{ALL}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_do_not_line_up_are_refused(name: str) -> None:
    _, graph = captured(GPT)
    with pytest.raises(PlanError) as raised:
        program_of_text(REFUSED[name], graph)
    (found,) = raised.value.diagnostics
    assert found.code == "E0401"


def test_the_operator_that_does_not_allow_both_is_named() -> None:
    _, graph = captured(f"{HERE.parent / 'fuzz' / 'buffers.py'}:batch_norm_twice")
    text = f"mesh gpus(dp = 2)\nsplit model by batch into dp, m = [3, 1]\n{ALL}"
    with pytest.raises(PlanError) as raised:
        program_of_text(text, graph)
    (found,) = raised.value.diagnostics
    assert "`batch_norm` in module `norm`" in found.text(found.note) and "does not allow both" in found.text(found.note)


def test_an_evaluation_has_the_weights_as_training_has_them() -> None:
    model, graph = captured(GPT)
    found = compile_source(Source("plan.ssp", PLANS["both inside"]), graph, {}, HERE)
    evaluation = compile_evaluation(found, model, ()).program
    assert evaluation.params == found.program.params
    wide = {p.weight: p.elements for p in found.program.params}
    assert wide["transformer.h.0.mlp.c_fc.bias"] == 60


@pytest.mark.parametrize("name", ["tensor", "zero3"])
def test_each_device_has_its_part_alone(name: str) -> None:
    """Of the weights, and of their gradients."""
    model, program = compiled(name)
    finished = run_in_process(program_of(program, model), Training(1, optimizer="sgd", lr=0.02))
    for rank, dump in finished.dumps.items():
        tp = rank // 2 if name == "zero3" else rank
        for held in (dump["weights"], dump["grads"][0]):
            for weight, parts in SHARES.items():
                for piece in (p for known, p in held.items() if known.endswith(weight)):
                    assert piece["tensor"].numel() * sum(parts) == math.prod(piece["shape"]) * parts[tp]


def test_a_shard_is_a_share_of_what_its_group_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3, and not of what the largest part has."""
    owned: dict[int, list[int]] = {}
    make = Weights.__init__

    def noted(self: Weights, flats: list[FlatWeights], buffers: Any, world: World) -> None:
        owned[world.rank] = [f.shard.numel() for f in flats if f.shard is not None]
        assert all(f.used <= f.elements < f.used + 2 for f in flats)
        make(self, flats, buffers, world)

    monkeypatch.setattr(Weights, "__init__", noted)
    model, program = compiled("zero3")
    run_in_process(program_of(program, model), Training(1, optimizer="sgd", lr=0.02))
    assert owned[0] == owned[1] and len({tuple(owned[rank]) for rank in (0, 2, 4)}) == 3


def test_wrong_parts_of_weights_are_refuted() -> None:
    _, program = compiled("ffn")
    assert prove(program).failures == ()
    first = next(p for p in program.params if any(isinstance(s, Shard) for s in p.layout.places))
    (held,) = first.layout.places
    parts = held.digit.at
    swapped, overlapping, missing = parts[::-1], (((0, 101),), *parts[1:]), (((0, 99),), *parts[1:])
    for at in (swapped, overlapping, missing):
        wrong = replace(first, layout=Layout((replace(held, digit=replace(held.digit, at=at)),)))
        params = tuple(wrong if p is first else p for p in program.params)
        assert prove(replace(program, params=params)).failures
