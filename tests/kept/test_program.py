"""A folder that revision 73fce42 compiled runs with its own runtime, and shares checkpoints with the code of today."""

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.main import make_optimizer
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory

MODEL = "gpt:tiny,layers=1,hidden=8,heads=2,seq=4,vocab=16,batch=4,dropout=0.1"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, its checkpoint behind two steps, and the losses of the two that followed."""
    folder = tmp_path_factory.mktemp("kept")
    with zipfile.ZipFile(Path(__file__).parent / "program.zip") as packed:
        packed.extractall(folder)
    return folder


def step_of_today(run: Path, saves: Path) -> float:
    """One step from a checkpoint, under another plan, and a checkpoint behind it."""
    model = load(MODEL)
    path = plan_path("tensor_parallel")
    program = program_of(compile_plan(path, capture(model), {"T": 2}).program, model)

    def body(world: World, place: Any) -> float:
        engine = Engine(InMemory(program), world, torch.device("cpu"), background=False)
        make_optimizer(engine, "adamw", 1e-3)
        assert engine.resume(run) == {} and engine.steps == 2
        loss: float = engine.step(model.batches[engine.steps])
        engine.save(saves, wait=True)
        return loss

    return run_ranks(program.table.world_size, body)[0]


def resumed(python: str, folder: Path, run: Path, steps: int, out: Path) -> list[float]:
    """The losses of a compiled folder that goes on from a checkpoint, with nothing but torch on the path."""
    agent = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [str(folder / "main.py"), "--steps", f"{steps}", "--resume", str(run), "--out", str(out)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*agent, *words], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    losses: list[float] = json.loads((out / "rank0.json").read_text())["losses"]
    return losses


def test_a_compiled_folder_and_todays_code_take_turns(kept: Path, tmp_path: Path, python_of_ranks: str) -> None:
    third, fourth = json.loads((kept / "losses.json").read_text())
    assert step_of_today(kept / "run", tmp_path / "run") == pytest.approx(third, rel=1e-5)
    losses = resumed(python_of_ranks, kept / "program", tmp_path / "run", 4, tmp_path / "out")
    assert losses == pytest.approx([fourth], rel=1e-5)


def test_another_runtime_says_that_the_program_is_not_its_own(kept: Path) -> None:
    """A runtime needs the table, and the calls of the roles, that are compiled for it."""
    with pytest.raises(EngineError, match="the program is of version 1, and this runtime runs version 5"):
        CompiledProgram.read(kept / "program")
