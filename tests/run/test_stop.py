"""A signal asks a run to stop: all ranks finish one step, save it, and a later run goes on from there."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.health.stop_request import StopRequest
from ssdsl.runtime.train.engine import Engine
from tests.run.test_find_nan import NET, PLAN
from tests.train.conftest import batches, on_ranks


def wait(done: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 300
    while not done():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize("plan", ["zero1", "stages", "idle"])
def test_all_ranks_hear_of_a_request_at_the_same_step(plan: str) -> None:
    def work(engine: Engine) -> list[bool]:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        found = []
        for step in range(3):
            if step == 1 and engine.rank == engine.world_size - 1:
                engine.ending.request.is_asked = True
            engine.step(batches(1)[0])
            found.append(engine.stopping)
        return found

    ranks = on_ranks(plan, work)
    assert ranks == [[False, True, True]] * len(ranks)


def test_a_signal_is_a_request() -> None:
    request, before = StopRequest(), signal.getsignal(signal.SIGUSR1)
    try:
        request.listen(signal.SIGUSR1)
        assert not request.is_asked
        os.kill(os.getpid(), signal.SIGUSR1)
        assert request.is_asked
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signals_are_taken_in_the_main_thread_only() -> None:
    said: list[str] = []

    def listen() -> None:
        with pytest.raises(EngineError) as error:
            StopRequest().listen(signal.SIGUSR1)
        said.append(str(error.value))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert "help: call it in the main thread" in said[0]


def test_a_run_that_is_asked_to_stop_saves_its_step(tmp_path: Path, python: str) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "p.ssp").write_text(PLAN)
    command = [python, "-m", "ssdsl", "run", "p.ssp", "--model", "net.py:net", "--save", "runs", "--out", "out"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "--steps", "1000000"], cwd=tmp_path, **streams)
    metrics = tmp_path / "out/results/metrics.jsonl"
    try:
        wait(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 75, said
    done = metrics.read_text().count("\n")
    assert f"warning[E0519]: a signal asked the run to stop: {done} of 1000000 steps are trained and saved" in said
    assert "--resume runs" in said
    facts = Checkpoint.open(tmp_path / "runs").facts
    assert facts["steps"] == done > 3
