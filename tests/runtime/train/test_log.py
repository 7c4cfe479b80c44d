"""The log of a run: what its lines say, what a resumed run keeps of them, and TensorBoard."""

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from ssdsl.run.progress import Progress, described
from ssdsl.runtime.train.log import FILE, Log, Work, known_peak_flops

WORK = Work(samples=4, tokens=256, flops=1000)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_line_has_rates_and_memory(tmp_path: Path) -> None:
    log = Log(tmp_path, WORK, peak_flops=1e6)
    log.step(0, 2.5, lr=1e-3, time_s=0.5, grad_norm=None)
    log.step(1, 2.0, grad_norm=3.0)
    first, second = lines(tmp_path)
    memory = first.pop("memory_bytes")
    assert memory > 1 << 20
    rates = {"samples_per_s": 8.0, "tokens_per_s": 512.0, "mfu": 1000 / 0.5 / 1e6}
    assert first == {"step": 0, "loss": 2.5, "time_s": 0.5, "lr": 1e-3, **rates}
    assert "lr" not in second and second["grad_norm"] == 3.0 and 0 < second["time_s"] < 10


def test_a_step_of_another_size_has_rates_of_its_own(tmp_path: Path) -> None:
    log = Log(tmp_path, WORK)
    log.step(0, 2.5, time_s=0.5)
    log.work = Work(samples=1, tokens=10)
    log.step(1, 2.5, time_s=0.5)
    assert [(line["samples_per_s"], line["tokens_per_s"]) for line in lines(tmp_path)] == [(8.0, 512.0), (2.0, 20.0)]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    Log(tmp_path, Work(4)).step(0, 1.0)
    assert lines(tmp_path)[0].keys() == {"step", "loss", "time_s", "samples_per_s", "memory_bytes"}
    assert known_peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_only_one_rank_writes(tmp_path: Path) -> None:
    said = Log(tmp_path, WORK, writes=False).step(0, 1.0)
    assert said["loss"] == 1.0 and not any(tmp_path.iterdir())
    Log(None, WORK).step(0, 1.0)


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    log = Log(tmp_path, WORK)
    for step in range(4):
        log.step(step, float(step))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 4, "lo')
    log = Log(tmp_path, WORK, first=2)
    log.step(2, 7.0)
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(0, 0.0), (1, 1.0), (2, 7.0)]


def test_tensorboard_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append("closed")

    board = ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(board, "SummaryWriter", SummaryWriter, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    log = Log(tmp_path, WORK, first=5)
    log.step(5, 2.5, lr=0.1)
    log.close()
    assert written[0] == (str(tmp_path / "tensorboard"), 5) and written[-1] == "closed"
    assert {("loss", 2.5, 5), ("lr", 0.1, 5)} <= set(written[1:-1])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Log(tmp_path, WORK, first=6).step(6, 1.0)


def test_the_bar_shows_the_last_line(tmp_path: Path) -> None:
    log = Log(tmp_path, WORK)
    with Progress(tmp_path / FILE, 10, None) as progress:
        log.step(0, 2.5, lr=3e-4, time_s=0.01)
        progress.update()
        assert progress.bar.tasks[0].description == "training, loss 2.5000, lr 0.0003, 25.6k tokens/s"
        assert progress.bar.tasks[0].completed == 1
    assert described({"step": 1, "loss": 2.0, "samples_per_s": 12.0}) == "loss 2.0000, 12.0 samples/s"


def test_runs_that_are_compiled_are_counted(tmp_path: Path) -> None:
    """On a terminal those of the rank with most left; elsewhere a line says how many there are."""
    compiling = {"doing": "compiling `head`, 2 of 3"}, {"doing": "compiling `block`, 3 of 3"}, {"doing": "forward"}
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
        with Progress(tmp_path / FILE, 10, console) as progress:
            progress.update(compiling)
            if is_terminal:
                (_, task) = progress.bar.tasks
                assert (task.description, task.completed, task.total) == ("compiling `head`", 1, 3)
            progress.update(compiling)
            progress.update([{"doing": "forward"}])
            assert len(progress.bar.tasks) == 1
        assert is_terminal or console.file.getvalue() == "compiling 3 runs of operators\n"  # type: ignore[attr-defined]
