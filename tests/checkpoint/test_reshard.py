"""What `ssdsl reshard` says travels is what `engine.replan` moves, to the byte."""

from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.ir.program import Program
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.run.checkpoints import reshard
from ssdsl.run.checkpoints.reshard import Holding, transition
from ssdsl.runtime.checkpoints.content import Box
from ssdsl.runtime.train.engine import Engine
from ssdsl.text.diagnostic import PlanError
from tests.train.conftest import AXES, batches, net
from tests.train.test_replan import PLANS, live

CUT = [name for name in PLANS if "matrix" not in PLANS[name]]  # homes get their weights once more


def programs(folder: Path) -> dict[str, Program]:
    graph = capture(model_of(net(), batches(1)[0], AXES))
    for name in CUT:
        (folder / f"{name}.ssp").write_text(PLANS[name])
    return {name: compile_plan(folder / f"{name}.ssp", graph, {}).program for name in CUT}


def test_what_travels_is_what_the_engine_moves(tmp_path: Path) -> None:
    found = programs(tmp_path)
    trip = [
        "one",
        "tensor",
        "stages",
        "zero3",
        "tensor",
        "zero1",
        "portions",
        "stages",
        "portions",
        "one",
        "zero3",
        "one",
    ]

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        engine.step(batches(1)[0])
        return [engine.replan(tmp_path / f"{name}.ssp") for name in trip[1:]]

    moved = live(trip[0], work, tmp_path)
    for step, (was, now) in enumerate(pairwise(trip)):
        said = transition(found[was], found[now])
        assert [said.got(rank) for rank in range(2)] == [ranks[step] for ranks in moved], (was, now)


def test_nothing_travels_between_equal_plans_and_everything_has_one_source(tmp_path: Path) -> None:
    found = programs(tmp_path)
    assert all(transition(program, program).size_bytes == 0 for program in found.values())
    for was, now in permutations(found, 2):
        assert transition(found[was], found[now]).elements > 0


def test_an_element_without_a_source_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(program: Program, tensors: int) -> Any:
        held = {("weight", "w"): Holding((Box((0,), (4,)),), 4, True)}
        return iter(
            [held, {}] if program is found["one"] else [{}, {("weight", "w"): Holding((Box((0,), (5,)),), 4, True)}]
        )

    found = programs(tmp_path)
    monkeypatch.setattr(reshard, "holdings", lost)
    with pytest.raises(PlanError, match="E0537"):
        transition(found["one"], found["zero3"])


def test_other_numbers_of_devices_are_refused(tmp_path: Path) -> None:
    found = programs(tmp_path)
    (tmp_path / "one.ssp").write_text("mesh gpus(dp = 4)\nsplit model by batch into dp\nassign model to gpus\n")
    wide = compile_plan(tmp_path / "one.ssp", found["one"].graph, {}).program
    with pytest.raises(PlanError, match="E0536"):
        transition(found["one"], wide)
