"""Convolutions in groups of channels, cut by their groups: on devices, in time, with other splits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import OpPart
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.verify.conftest import ROOT, captured

TRAINING = Training(2, optimizer="sgd", lr=0.1)
PLANS = {
    "tensor": ("tp = 4", "channels into tp"),
    "two axes": ("dp = 2, tp = 2", "batch into dp", "channels into tp"),
    "space": ("h = 2, tp = 2", "height into h", "channels into tp"),
    "unequal": ("tp = 2", "channels into tp = [1, 3]"),
    "in time": ("dp = 1", "channels into t = 2"),
    "unequal in time": ("dp = 1", "channels into t = [3, 1]"),
    "micro-batches": ("dp = 2", "batch into m = 2, dp"),
}
CASES = [("depthwise", name) for name in ("tensor", "two axes", "space", "in time")]
CASES += [("cardinal", name) for name in ("tensor", "two axes", "unequal", "in time", "unequal in time")]
CASES += [("per_sample", "micro-batches")]


def plan(name: str) -> str:
    axes, *splits = PLANS[name]
    words = "".join(f"split model by {split}\n" for split in splits)
    return f"mesh gpus({axes})\n{words}assign model to gpus\n"


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_numbers_are_those_of_one_device(kind: str, name: str) -> None:
    model, graph = captured(f"grouped.py:{kind}")
    outcome = try_plan(model, graph, plan(name), TRAINING)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(
    ("kind", "name"), [("depthwise", "tensor"), ("cardinal", "tensor"), ("per_sample", "micro-batches")]
)
def test_convolutions_are_cut(kind: str, name: str) -> None:
    """Nothing is equal because it stayed whole."""
    _, graph = captured(f"grouped.py:{kind}")
    program = compile_source(Source("plan.ssp", plan(name)), graph, {}, ROOT).program
    parts = [i for f in program.functions for i in f.body() if isinstance(i, OpPart) and "conv" in i.operator]
    assert parts
    assert all(part.splits for part in parts)


def test_what_has_no_common_dimensions_is_whole() -> None:
    model, graph = captured("grouped.py:shuffled")
    text = "mesh gpus(tp = 3)\nsplit model by channels into tp where possible\nassign model to gpus\n"
    outcome = try_plan(model, graph, text, TRAINING)
    assert outcome.kind == "equal", outcome.text


def test_processes_compute_the_same(program: Callable[..., Program], tmp_path: Path) -> None:
    path = tmp_path / "plan.ssp"
    path.write_text(plan("two axes"))
    program(path, "grouped.py:depthwise").verify_processes(TRAINING)
