"""`ssdsl.search`: what a script gets, and what it is told of numbers that are none."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ssdsl
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.captured import graph_of

MODEL = "gpt:tiny,layers=2"


def test_a_report(tmp_path: Path) -> None:
    report = ssdsl.search("megatron", MODEL, "a100x8", params={"T": [1, 2]}, tries=8, top=2, kernels="compiled")
    assert report.best is report.rows[0] and len(report.rows) == 2
    assert "best of each kind" in str(report) and "<iframe" in report._repr_html_()
    report.write(tmp_path / "best.ssp")
    on, graph = load_cluster("a100x8"), graph_of(MODEL)
    again = compile_plan(tmp_path / "best.ssp", graph, {}, on, Kernels.COMPILED)
    assert simulate(again.program, again.source, on).step_s == report.best.report.step_s
    eager = compile_plan(tmp_path / "best.ssp", graph, {}, on)
    assert simulate(eager.program, eager.source, on).step_s > report.best.report.step_s


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"memory": 0}, ValueError),
        ({"devices": range(1, 1)}, ValueError),
        ({"devices": 64}, ValueError),
        ({"devices": 0}, ValueError),
        ({"tries": 0}, ValueError),
        ({"top": 0}, ValueError),
        ({"seconds": 0}, ValueError),
        ({"kernels": "fast"}, ValueError),
        ({"params": {"M": []}}, ValueError),
        ({"params": {"M": "4"}}, ValueError),
        ({"params": {"M": 2.5}}, ValueError),
        ({"devices": "4"}, ValueError),
        ({"devices": 2.5}, ValueError),
        ({"params": {"XX": 3}}, PlanError),
    ],
)
def test_numbers_that_are_none(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ssdsl.search("megatron", "gpt:tiny", "a100x8", **given)


def test_a_module_or_a_tuple_is_told_how_to_become_a_model() -> None:
    module = torch.nn.Linear(2, 2)
    for given in (module, (module, {"input": torch.zeros(2, 2)})):
        with pytest.raises(PlanError, match=r"E0309: the model is a (Linear|tuple), not a model of ssdsl") as refused:
            ssdsl.search("megatron", given, "a100x8")  # type: ignore[arg-type]
        assert "ssdsl.model_of(module, batch)" in render(refused.value.diagnostics[0])


def test_the_best_values_have_the_params_that_were_set() -> None:
    report = ssdsl.search("megatron", MODEL, "a100x8", params={"T": [1, 2], "M": 2}, tries=3, orders=False)
    assert report.best is not None and report.best.values["M"] == 2 and report.best.values["T"] in (1, 2)
    assert report.baseline.values["M"] == 2
    with_others = ssdsl.search("megatron", MODEL, "a100x8", params=report.best.values, tries=1, orders=False)
    assert with_others.baseline.report.step_s == report.best.report.step_s
