"""Real processes: a save goes on beside the collectives of training, and one that loses a rank is an error."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ssdsl.runtime.checkpoints.reader import Checkpoint
from tests.checkpoint import parts

ROOT = Path(__file__).parent.parent.parent
RANKS = 2
RUN = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from ssdsl.runtime.checkpoints.loader import open_on_all, read_on_all
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.ranks.control import Control
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.transport import Transport
from tests.checkpoint import parts

run, store, rank, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=30))
control, saver = Control(Transport()), Saver(Control(Transport()))
saver.save(run, 1, parts.content(1, rank, 2))
for _ in range(50):  # training goes on
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert x[0] == 2
saver.wait()
if how == "dies" and rank == 1:
    os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
try:
    saver.save(run, 2, parts.content(2, rank, 2))
    saver.close()
except EngineError as error:
    print(error)
    os._exit(7)
mine = parts.content(3, rank, 2)
read_on_all(open_on_all(run, control), mine.tensors, control)
expected = parts.content(2, rank, 2)
assert all(torch.equal(held.tensor, expected.tensors[path].tensor) for path, held in mine.tensors.items())
saver.save(run, 3, parts.content(3, rank, 2))  # the script ends
"""


def processes(python: str, folder: Path, how: str) -> list[tuple[int, str]]:
    """The exit status and the words of each rank."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-c", RUN, str(folder / "run"), str(folder / "store")]
    started = [
        subprocess.Popen(
            [*command, str(rank), how], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(RANKS)
    ]
    try:
        words = [one.communicate(timeout=100)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    return [(one.returncode, said) for one, said in zip(started, words, strict=True)]


def test_a_save_beside_training(tmp_path: Path, python: str) -> None:
    ended = processes(python, tmp_path, "lives")
    assert [status for status, _ in ended] == [0, 0], ended
    parts.check(Checkpoint.open(tmp_path / "run").whole, 3)
    parts.check(Checkpoint.open(tmp_path / "run" / "step-00000002").whole, 2)


def test_a_rank_is_killed(tmp_path: Path, python: str) -> None:
    (status, said), (killed, _) = processes(python, tmp_path, "dies")
    assert (status, killed) == (7, -signal.SIGKILL) and "a checkpoint was not saved: " in said
    parts.check(Checkpoint.open(tmp_path / "run").whole, 1)


TWO = """
import os, sys, time
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.control import LoneControl
from tests.checkpoint import parts

def save(seed):
    saver = Saver(LoneControl(), background=False)
    saver.save(sys.argv[1], seed, parts.content(seed, 0, 1))
    return saver

first = save(1)
save(2)  # of the same process
waits, ends = os.pipe()
if os.fork() == 0:  # as a loader's worker: it has the lock's file, not the lock, and ends some time after its parent
    os.close(ends)
    os.read(waits, 1)
    time.sleep(10)
    os._exit(0)
print("saves", flush=True)
if sys.stdin.readline() == "close\\n":
    first.close()
    print("closed", flush=True)
    sys.stdin.readline()
os._exit(0)  # as one that is killed
"""
OTHER = (
    TWO.partition("first = ")[0]
    + """
try:
    save(3)
except EngineError as error:
    print(error)
"""
)


@pytest.mark.parametrize("how", ["close", "die"])
def test_two_runs_do_not_save_to_one_folder(tmp_path: Path, python: str, how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = str(tmp_path / "run")

    def other() -> str:
        return subprocess.run([python, "-c", OTHER, run], env=environment, stdout=subprocess.PIPE, text=True).stdout

    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([python, "-c", TWO, run], env=environment, **pipes) as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "saves\n"
        assert f"another run saves to `{run}`: process " in other()
        first.stdin.write(how + "\n")
        first.stdin.flush()
        if how == "close":
            assert first.stdout.readline() == "closed\n"
        else:
            first.wait()
        assert other() == ""
    parts.check(Checkpoint.open(tmp_path / "run").whole, 3)
