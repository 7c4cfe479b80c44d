"""Conversions that are in flight between tasks: the same bits as if tasks awaited what they start, forward and
backward, and no more communication; none where the devices have nothing else to run."""

import pytest
import torch

from ssdsl.compile import compile_source
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.lower import lower
from ssdsl.lower.tasks.start_across_tasks import start_across_tasks
from ssdsl.model.load import load
from ssdsl.run.in_process.run_in_process import Finished, program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import captured
from tests.lower.test_start_conversions import _tensors

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
MIXTURE = "mixtral:tiny,balance=0.5"
HALVES = """\
mesh gpus(tp = 2)
split model by batch into half = 2
split model by heads into tp
split model by ffn into tp
assign model to gpus
for layer in each("h.*"):
    order layer["attn"].fwd[half = 0] -> layer["attn"].fwd[half = 1] -> layer["mlp"].fwd[half = 0]
"""
SEQUENCE = HALVES.replace("assign", "split model[tp = none] by seq into tp\nassign")
RECOMPUTED = HALVES + 'recompute model["h.*.attn"]\n'
DEFERRED = HALVES + 'order model["h.*.mlp"].dgrad -> model["h.*.mlp"].wgrad\n'
ROWS = """\
mesh gpus(ep = 2)
let experts = model["model.layers.*.mlp.experts"]
let products = experts.routed_mm | experts.transpose | experts.split | experts.silu
split model by batch into m = 2
split experts by experts into ep
split model - experts by batch into ep
assign model to gpus
order products.fwd -> products.bwd
"""
CASES = {
    "halves": (HALVES, GPT),
    "sequence": (SEQUENCE, GPT),
    "recomputed": (RECOMPUTED, GPT),
    "deferred": (DEFERRED, GPT),
    "rows": (ROWS, MIXTURE),
}
TRAINING = Training(steps=2, optimizer="sgd", lr=0.1)


def compiled(plan: str, model: str) -> Program:
    return compile_source(Source("plan.ssp", plan), captured(model)[1], {}, None).program


def in_flight(program: Program) -> list[tuple[str, str]]:
    """The kinds of the steps of what is in flight, forward and backward."""
    found = [f.departure(n) for f in program.functions for n in f.departing.values()]
    return [(_kinds(c, gradient=False), _kinds(c, gradient=True)) for c in found]


def _kinds(conversion: Conversion, *, gradient: bool) -> str:
    return " ".join(step.kind for step in conversion.steps(gradient=gradient))


def _calls(finished: Finished) -> dict[tuple[int, str], int]:
    return {(rank, kind): n["calls"] for rank, kinds in finished.counts.items() for kind, n in kinds.items()}


@pytest.mark.parametrize("case", CASES)
def test_no_bit_depends_on_the_start(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, model = CASES[case]
    program = compiled(plan, model)
    assert in_flight(program)
    early = run_in_process(program_of(program, load(model)), TRAINING)
    monkeypatch.setattr(lower, "PASSES", tuple(p for p in lower.PASSES if p is not start_across_tasks))
    awaited = compiled(plan, model)
    assert not in_flight(awaited)
    late = run_in_process(program_of(awaited, load(model)), TRAINING)
    assert early.losses == late.losses
    assert all(calls <= _calls(late)[key] for key, calls in _calls(early).items())  # numbers of rows go once
    pairs = [*zip(_tensors(early.dumps), _tensors(late.dumps), strict=True)]
    assert pairs and all(torch.equal(a, b) for a, b in pairs)


def test_sums_and_their_gradients_are_in_flight() -> None:
    """A sum forward alone; the gradient of what a split product reads backward alone; under sequence parallelism
    both."""
    assert {*in_flight(compiled(HALVES, GPT))} == {("all_reduce", ""), ("", "all_reduce")}
    assert {*in_flight(compiled(SEQUENCE, GPT))} == {
        ("reduce_scatter", "all_gather"),
        ("all_gather", "reduce_scatter"),
    }


def test_rows_are_in_flight_both_ways() -> None:
    """To their experts, with their numbers sent before, and back."""
    found = in_flight(compiled(ROWS, MIXTURE))
    assert found.count(("all_to_all", "all_to_all")) >= 2


def test_nothing_is_in_flight_without_another_task() -> None:
    whole = HALVES.replace("half = 2", "half = 1")
    assert in_flight(compiled(whole, GPT)) == []


def test_a_task_of_one_conversion_is_left_with_it() -> None:
    """What a stage that selects the loss leaves of a function that only gathers is that gather: a cycle is told, and
    the pass does not fail."""
    text = """\
mesh gpus(dp = 2, pp = 3)
let inner = model["h.0"]
split model by vocab into dp parts [[0], [1, 2, 3]]
assign model - inner - model["lm_head"] to gpus[pp = 0]
assign inner to gpus[pp = 1]
assign model["lm_head"] to gpus[pp = 2]
order inner -> model.cross_entropy_loss
"""
    with pytest.raises(PlanError, match="E0403"):
        compiled(text, GPT)
