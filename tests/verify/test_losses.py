"""Whatever scalar a model returns trains as on one device, in process: parts of a sum stay parts, the rest waits."""

import pytest

from bench.fuzz.models import Recipe
from bench.fuzz.trial import Case, Outcome, try_case, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.show.tables.check import check_views
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.lower.follow import followed
from tests.models.losses import GRADIENTS, LINEAR, OTHERS
from tests.verify.conftest import HERE, captured, program_of_text

PIPELINE = """\
use pipeline: {schedule}
mesh gpus(pp = 2, dp = {D})
split model by batch into dp, m = {M}
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, {M})
"""
PLANS = {
    "dp": "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n",
    "tp": "mesh gpus(tp = 2)\nsplit model.linear by ffn into tp\nassign model to gpus\n",
    "micro": "mesh gpus(dp = 1)\nsplit model by batch into m = 4\nassign model to gpus\n",
    "zero": "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n"
    "split model.weights by row into dp\nsplit model.grads by row into dp\nsplit model.optimizer by row into dp\n",
    "gpipe": PIPELINE.format(schedule="gpipe", D=1, M=4),
    "1f1b": PIPELINE.format(schedule="one_f_one_b", D=2, M=2),
    "zero_bubble": PIPELINE.format(schedule="zb_h1", D=1, M=4),
}


def tried(name: str, plan: str) -> Outcome:
    model, graph = captured(f"losses.py:net_{name}")
    return try_plan(model, graph, PLANS[plan], Training(2, optimizer="adamw", lr=0.02))


def compiled(name: str, plan: str) -> Program:
    _, graph = captured(f"losses.py:net_{name}")
    return program_of_text(PLANS[plan], graph)


@pytest.mark.thinned(45)
@pytest.mark.parametrize("plan", ["dp", "micro", "zero", "gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", [loss.__name__ for loss in LINEAR])
def test_sums_of_terms_train_under_any_plan(name: str, plan: str) -> None:
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.thinned(24)
@pytest.mark.parametrize("plan", ["dp", "micro", "zero", "gpipe"])
@pytest.mark.parametrize("name", [loss.__name__ for loss in OTHERS])
def test_other_losses_wait_for_all_parts(name: str, plan: str) -> None:
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.covering
@pytest.mark.parametrize("plan", ["dp", "zero", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", [loss.__name__ for loss in GRADIENTS])
def test_weights_with_and_without_gradients_are_updated_as_on_one_device(name: str, plan: str) -> None:
    """AdamW decays a weight whose gradient is zero, and leaves one that has none."""
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["early", "uncertainty", "early_penalty", "clip"])
def test_losses_with_cut_weights(name: str) -> None:
    outcome = tried(name, "tp")
    assert outcome.kind == "equal", outcome.text


WHOLE = {"product": "mul", "ratio": "div", "exponential": "exp", "perplexity": "exp", "root": "sqrt", "clip": "matmul"}


@pytest.mark.parametrize(("name", "kind"), WHOLE.items())
@pytest.mark.parametrize("plan", ["1f1b", "zero_bubble"])
def test_a_circle_is_explained_by_the_operator_that_needs_the_whole(name: str, kind: str, plan: str) -> None:
    with pytest.raises(PlanError) as raised:
        compiled(name, plan)
    text = render(raised.value.diagnostics[0])
    assert text.startswith(f"error[E0403]: `{kind}` needs all parts along `m` at once")
    assert f"`{kind}` in the model (losses.py:" in text
    assert "it waits for m = 0, 1" in text


@pytest.mark.parametrize("plan", ["gpipe", "1f1b", "zero_bubble"])
def test_the_help_for_what_stands_between_parts_is_to_leave_the_order_out(plan: str) -> None:
    """An order of all forwards is as impossible as others; without it, the parts in front come before those behind."""
    with pytest.raises(PlanError) as raised:
        compiled("centred", plan)
    diagnostic = raised.value.diagnostics[0]
    assert diagnostic.code == "E0403"
    text = followed(PLANS[plan], diagnostic.text(diagnostic.help))
    outcome = try_plan(*captured("losses.py:net_centred"), text, Training(1, lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("plan", ["1f1b", "zero_bubble"])
def test_the_help_for_what_stands_behind_all_parts_is_to_run_all_forwards_first(plan: str) -> None:
    with pytest.raises(PlanError) as raised:
        compiled("exponential", plan)
    assert "as `gpipe` does" in raised.value.diagnostics[0].text(raised.value.diagnostics[0].help)
    assert compiled("exponential", "gpipe").functions


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1", "zb_h2"])
@pytest.mark.parametrize("kind", ["max", "var", "cumsum"])
def test_so_is_a_circle_of_backwards(schedule: str, kind: str) -> None:
    """An operator inside of the model, whose backward waits for that of every part."""
    stages = "\n".join(f"assign stage[{s}] to gpus[pp = {s}]" for s in range(2))
    plan = f"use pipeline: {schedule}\nmesh gpus(pp = 2)\nlet stage = balance(model, 2)\n{stages}\n"
    plan += f"split model by batch into m = 2\n{schedule}(stage, 2)\n"
    layers = (("All", (kind, 0)), ("BareMlp", (4, 8)))
    outcome = try_case(Case(Recipe(4, 2, 4, 6, "linear", layers, "squares", 1), (plan,), "sgd", 1))
    assert outcome.text.startswith(f"E0403: `{kind}` needs all parts along `m` at once")


def test_so_is_a_circle_through_what_is_sent() -> None:
    """All parts of the second mesh read one result of the first."""
    layers = ("BareMlp", (4, 16)), ("BareMlp", (4, 4))
    plan = """\
mesh g0(tp = 1)
mesh g1(ep = 1)
split model["h.1"] by batch into m = 2
assign model["h.1"] to g1
assign model - model["h.1"] to g0
order model["h.1"].bwd[m = 0] -> model["h.1"].fwd[m = 1]
order model["front"].bwd -> model["h.1"].fwd[m = 1]
"""
    outcome = try_case(Case(Recipe(4, 3, 4, 6, "linear", layers, "squares", 1), (plan,), "sgd", 1))
    assert outcome.text.startswith("E0403: `linear` needs all parts along `m` at once"), outcome.text


@pytest.mark.parametrize(("model", "plan"), [("mixtral", "gpipe"), ("moe_gpt", "gpipe"), ("moe_gpt", "1f1b")])
def test_penalties_of_routers(model: str, plan: str) -> None:
    """Mixtral's is a product of means over the batch, which a merge completes between forwards and backwards."""
    found, graph = captured(model)
    outcome = try_plan(found, graph, PLANS[plan], Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text


def test_a_backward_before_the_last_forward_has_no_mean_of_the_batch() -> None:
    found, graph = captured("mixtral")
    outcome = try_plan(found, graph, PLANS["1f1b"], Training(1))
    assert outcome.text.startswith("E0403: `mul` needs all parts along `m` at once"), outcome.text


def test_what_waits_is_one_late_task() -> None:
    program = compiled("exponential", "gpipe")
    late = [f for f in program.functions if not f.time]
    assert [op.operator for f in late for op in f.operators()] == ["exp"]
    assert any(op.operator == "mean" for f in program.functions if f.time for op in f.operators())


def test_a_penalty_needs_no_collective_of_its_own() -> None:
    """Both terms stay addends over the devices; the report alone adds them up."""
    program = compiled("early_penalty", "dp")
    assert "all_reduce" not in {step.kind for f in program.functions for step in _steps(f)}


def _steps(function):  # type: ignore[no-untyped-def]
    return (s for i in function.body() if hasattr(i, "forward") for s in (*i.forward, *i.backward))


def test_check_says_what_was_left_whole() -> None:
    _, graph = captured("losses.py:net_clip")
    found = compile_source(Source("plan.ssp", PLANS["gpipe"]), graph, {}, HERE)
    notes = [note for view in check_views(found) for note in view.notes]
    assert any("run once, on all parts of `m`: they wait for `matmul`" in note for note in notes)
