"""torchrun starts a training script again after a rank was killed: it goes on as if nothing had happened."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from tests.run.restarting import AXES, PARAMS, model_and_batch, train
from tests.torchrun import torchrun

Attempt = tuple[Any, list[tuple[int, str]]]


def attempts_in(folder: Path) -> list[Attempt]:
    """Of each attempt what it resumed, and its losses by step."""
    found = []
    for attempt in range(3):
        texts = [path.read_text() for path in sorted(folder.glob(f"losses-{attempt}-*"))]
        if texts:
            resumed, losses = json.loads(texts[0])
            other, of_other = json.loads(texts[1])
            n = min(len(losses), len(of_other))
            assert resumed == other and losses[:n] == of_other[:n] and n >= len(losses) - 1
            found.append((resumed, list(map(tuple, losses))))
    return found


def killed(python: str, folder: Path, copies: bool) -> list[Attempt]:
    """A run in two processes that loses ranks."""
    folder.mkdir()
    done = torchrun(python, Path(__file__).with_name("restarting.py"), str(folder), restarts=2, copies=copies)
    assert done.returncode == 0, done.stderr[-4000:]
    return attempts_in(folder)


def whole(folder: Path) -> Attempt:
    """A run that loses none, in ranks of this process: two ranks add in the same order in both."""
    folder.mkdir()
    net, example = model_and_batch()
    model = model_of(net, example, AXES)
    path = plan_path("zero")
    program = program_of(compile_plan(path, capture(model), PARAMS).program, model)

    def body(world: World, _: Any) -> None:
        own = replace(program, weights=program.weights.copy())
        engine = Engine(InMemory(own), world, torch.device("cpu"), background=False)
        train(engine, folder, 0, lambda _: None)
        engine.close()

    run_ranks(2, body)
    (only,) = attempts_in(folder)
    return only


@pytest.mark.parametrize("copies", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["copies", "processes"])
def test_a_run_that_loses_ranks_goes_on_to_the_bit(tmp_path: Path, python_of_ranks: str, copies: bool) -> None:
    resumed, expected = whole(tmp_path / "whole")
    assert resumed is None and [step for step, _ in expected] == list(range(13))
    attempts = killed(python_of_ranks, tmp_path / "killed", copies)
    firsts = [losses[0][0] for _, losses in attempts]
    assert firsts[0] == 0 and firsts[1] in (3, 6) and firsts[2] in (3, 6), firsts
    assert attempts[0][1][-1][0] == 6  # the step that was killed has no loss
    for resumed, losses in attempts:
        first = losses[0][0]
        assert losses == expected[first : first + len(losses)]
        assert resumed is None if first == 0 else resumed == {"loss": expected[first - 1][1]}
    assert attempts[2][1][-1][0] == 12
