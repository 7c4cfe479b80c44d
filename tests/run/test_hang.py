"""A rank that hangs ends the run within the limit; the report names what each rank waits for, with the plan's line."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.run.launch import Nodes, RunResult, launch
from ssdsl.runtime.health.stall import read_states
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

LIMIT_S, PATIENCE_S = 6.0, 60.0  # the second for ranks that end on a busy machine
HEARD_S = 2.5  # until all ranks have told the others that they train
ENDLESS = Training(steps=10**6, timeout_s=LIMIT_S)
TP = r"all_reduce over tp \(ranks 2, 3\) of [\w. ]+; mlp.ssp:[89]: split model by (ffn|vocab) into tp"
GRADIENT = r"receive of the gradient of `add_1` from rank 2; mlp.ssp:13: assign stage\[s\] to gpus\[pp = s\]"
VALUE = r"receive of `add_1` from rank 0; mlp.ssp:13: assign stage\[s\] to gpus\[pp = s\]"


def states(out: Path) -> dict[int, Any]:
    return read_states(out)


def wait_for(done: Callable[[], object], limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def trains(out: Path, ranks: int = 4, step: int = 3) -> bool:
    found = states(out)
    return len(found) == ranks and all((s["step"] or 0) >= step for s in found.values())


def assert_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(lives(pid) for pid in pids), 10)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def torchrun(python: str, folder: Path, *arguments: str) -> list[str]:
    agent = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    return [*agent, str(folder / "main.py"), *arguments]


ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


STOP = """\
    __import__("time").sleep(0.05)  # a step takes little of the processors that all ranks share
    run.since = getattr(run, "since", None) or __import__("time").monotonic()
    if run.world.rank == {rank} and __import__("time").monotonic() - run.since > {after_s}:
        __import__("os").kill(__import__("os").getpid(), __import__("signal").SIGSTOP)
"""


def stopping(program: Path, folder: Path, role: str, rank: int, before: str) -> Path:
    """The program, in which a rank is stopped in front of a task, when all have trained for a while."""
    shutil.copytree(program, folder)
    path = folder / f"role_{role}.py"
    head, found, rest = path.read_text().partition(f"    run.{before}")
    assert found
    path.write_text(head + STOP.format(rank=rank, after_s=HEARD_S) + found + rest)
    return folder


@pytest.mark.slow
def test_torchrun_ends_when_a_rank_hangs(mlp_program: Path, tmp_path: Path, python: str) -> None:
    """Rank 3 is stopped: rank 2 waits for it in an all_reduce, and rank 0 for rank 2's gradient."""
    program = stopping(mlp_program, tmp_path / "program", "gpus_pp1", 3, "forward(block1, m=0)")
    out = tmp_path / "out"
    arguments = ("--steps", "1000000", "--timeout", str(LIMIT_S), "--out", str(out))
    command = torchrun(python, program, *arguments)
    run = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: trains(out, step=1) or run.poll() is not None)
        assert run.poll() is None, run.communicate()
        pids, started = [s["pid"] for s in states(out).values()], time.monotonic()
        _, said = run.communicate(timeout=120)
        assert run.returncode != 0 and time.monotonic() - started < HEARD_S + LIMIT_S + PATIENCE_S
    finally:
        run.kill()
    assert re.search(r"because rank 3, role gpus_pp1, has not moved for \d+ s: its process is stopped", said)
    assert re.search(r"rank 2 since \d+ s in step \d+, .*" + TP, said)
    assert re.search(r"rank 0 since \d+ s in step \d+, .*" + GRADIENT, said)
    assert_gone(pids)


@pytest.mark.slow
def test_run_ends_when_a_rank_hangs(mlp_program: Path, tmp_path: Path) -> None:
    """Rank 0 is stopped: rank 2 waits for what it sends."""
    program = stopping(mlp_program, tmp_path / "program", "gpus_pp0", 0, "forward(block0, m=0)")
    with pytest.raises(PlanError) as caught:
        launch(program, ENDLESS, processes=4, out=tmp_path / "out")
    said = "\n".join(map(render, caught.value.diagnostics))
    assert "error[E0513]: rank 0, role gpus_pp0, has not moved" in said and "its process is stopped" in said
    assert re.search(r"rank 2 since \d+ s in step \d+, .*" + VALUE, said)
    assert_gone([s["pid"] for s in states(tmp_path / "out").values()])


# -- several nodes, restarts -------------------------------------------------------------------------------------------


def on_two_nodes(program: Path, out: Path, training: Training, port: int, restarts: int = 0) -> list[RunResult]:
    """Both nodes are this machine, each with a folder of its own: they share no disk."""
    found: dict[int, RunResult | BaseException] = {}

    def node(rank: int) -> None:
        nodes = Nodes(2, rank, f"127.0.0.1:{port}")
        try:
            where = out / f"node{rank}"
            found[rank] = launch(program, training, processes=4, out=where, nodes=nodes, max_restarts=restarts)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for result in found.values():
        if isinstance(result, BaseException):
            raise result
    return [found[0], found[1]]  # type: ignore[list-item]


@pytest.mark.slow
def test_two_nodes_and_a_restart(mlp_program: Path, tmp_path: Path) -> None:
    """A rank of the second node is killed: all ranks start again, and the first node has the results of all."""
    training = Training(steps=150, timeout_s=60)

    def kill() -> None:
        wait_for(lambda: trains(tmp_path / "node1", 2))
        os.kill(states(tmp_path / "node1")[3]["pid"], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    first, second = on_two_nodes(mlp_program, tmp_path, training, 29641, restarts=1)
    assert [rank.rank for rank in first.ranks] == [0, 1, 2, 3] and [rank.rank for rank in second.ranks] == [2, 3]
    assert len(first.losses) == 150 and first.losses[0] > first.losses[-1]
    assert {s["attempt"] for s in states(tmp_path / "node1").values()} == {1}
    lines = (tmp_path / "node0" / "metrics.jsonl").read_text().splitlines()  # of the second attempt alone
    assert len(lines) == 150 and all("loss" in json.loads(line) for line in lines)
    assert not list(tmp_path.glob("node*/rank*.err"))


@pytest.mark.slow
def test_nodes_with_different_programs(mlp_program: Path, tmp_path: Path) -> None:
    """The second node has another table: all ranks of one node say so."""
    other = tmp_path / "other"
    shutil.copytree(mlp_program, other)
    table = other / "program.json"
    table.write_text(table.read_text().replace('"model": "', '"model": "another '))
    errors: dict[int, str] = {}

    def node(rank: int, folder: Path) -> None:
        try:
            nodes = Nodes(2, rank, "127.0.0.1:29643")
            launch(folder, Training(steps=3, timeout_s=30), processes=4, out=tmp_path / f"node{rank}", nodes=nodes)
        except PlanError as error:
            errors[rank] = "\n".join(map(render, error.diagnostics))

    threads = [threading.Thread(target=node, args=(k, f)) for k, f in enumerate((mlp_program, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert any("the nodes have different programs" in text for text in errors.values()), errors
