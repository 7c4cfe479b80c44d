"""Norms split along what they normalise: parts agree on the statistics of each row, and hold their own weights."""

from types import SimpleNamespace

import pytest
import torch

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.runtime import rms_norm_parts
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.verify.conftest import captured

PLANS = {
    "parts": "mesh gpus(tp = 2)\nsplit model by hidden into tp\nassign model to gpus\n",
    "unequal parts": "mesh gpus(tp = 2)\nsplit model by hidden into tp = [2, 4]\nassign model to gpus\n",
    "two axes": "mesh gpus(a = 3, b = 2)\nsplit model by hidden into a, b\nassign model to gpus\n",
    "and the batch": """\
mesh gpus(dp = 2, tp = 3)
split model by batch into m = 2
split model by hidden into tp
split model.weights by row into dp
assign model to gpus
""",
    "only norms": 'mesh gpus(tp = 2)\nsplit model["norms.*"] by hidden into tp\nassign model to gpus\n',
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", ["layers", "squares"])
def test_equal_to_one_device(model: str, plan: str) -> None:
    outcome = try_plan(*captured(f"rows.py:{model}"), PLANS[plan], Training(2, optimizer="adamw", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("dim", ["hidden", "rows"])
def test_either_of_two_axes(dim: str) -> None:
    plan = f"mesh gpus(tp = 2)\nsplit model by {dim} into tp\nassign model to gpus\n"
    outcome = try_plan(*captured("rows.py:two_axes"), plan, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_small_numbers_show_the_eps(dtype: torch.dtype, eps: float | None) -> None:
    alone = SimpleNamespace(all_reduce=lambda x: None)  # a group of one rank
    x = torch.full((2, 8), 1e-3, dtype=dtype)
    expected = torch.nn.functional.rms_norm(x, (8,), eps=eps)
    torch.testing.assert_close(rms_norm_parts(x, [8], None, 8, alone, eps), expected)  # type: ignore[arg-type]


def test_weights_are_cut_with_their_rows() -> None:
    _, graph = captured("rows.py:layers")
    program = compile_source(Source("plan.ssp", PLANS["parts"]), graph, {}, None).program
    assert {p.elements for p in program.params if p.weight.startswith("norms")} == {3}
