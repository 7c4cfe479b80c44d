"""Checkpoints of revision 73fce42 are loaded under other plans: with the numbers that it read, and runs go on alike."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.model.graph import Graph
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model, computing
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.checkpoints.convert import open_checkpoint, to_torch
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from tests.kept.script import AXES, SAVED, SCALE, Net, example, trained

KEPT = Path(__file__).parent / "checkpoints"
RUNS = {  # by the ZeRO stage that saved: the plan that goes on, in which precision, and how near its losses are
    "none": ("zero", {"D": 2, "Z": 3}, None, 1e-5),
    "zero1": ("data_parallel", {"D": 4}, "fp16", 2e-3),
    "zero2": ("tensor_parallel", {"T": 2}, None, 1e-5),
    "zero3": ("zero", {"D": 4, "Z": 2}, None, 1e-5),
}


def numbers(folder: Path, file: Path) -> dict[str, Any]:
    """All that a checkpoint has of the model and the optimizer, as a single device has them."""
    to_torch(open_checkpoint(str(folder)), file, optim=True)
    return read(file)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def alike(one: Any, other: Any) -> bool:
    """To the bit."""
    match one:
        case torch.Tensor():
            return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        case dict():
            return isinstance(other, dict) and [*one] == [*other] and all(alike(v, other[k]) for k, v in one.items())
        case list() | tuple():
            return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@cache
def captured(precision: str | None) -> tuple[Model, Graph]:
    torch.manual_seed(1)  # other weights than the runs began with
    model = replace(model_of(Net(), example(), AXES, seed=3), precision=precision)
    return model, capture(computing(model))


def goes_on(name: str, saves: Path) -> Any:
    """Loads the kept run under another plan, saves it from there, and trains on."""
    plan, params, precision, _ = RUNS[name]
    model, graph = captured(precision)
    program = program_of(compile_plan(plan_path(plan), graph, params).program, model)

    def body(world: World, place: Any) -> Any:
        own = InMemory(replace(program, weights=program.weights.copy()))
        engine = Engine(own, world, torch.device("cpu"), seed=7, background=False)
        steps = trained(engine, KEPT / name, saves)
        assert engine.scaler is None or engine.scaler.scale == SCALE
        return steps

    first, *others = run_ranks(program.table.world_size, body)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_goes_on_under_another_plan(name: str, tmp_path: Path) -> None:
    expected = read(KEPT / name / "numbers.pt")
    assert alike(numbers(KEPT / name, tmp_path / "read.pt"), expected)
    steps = json.loads((KEPT / name / "steps.json").read_text())
    found = goes_on(name, tmp_path / "run")
    assert alike(numbers(tmp_path / "run", tmp_path / "loaded.pt"), expected)
    assert [rate for _, rate in found] == [rate for _, rate in steps[SAVED:]]
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in steps[SAVED:]], rel=RUNS[name][3])
