"""Starts a program folder through torchrun, shows its progress, reads its results, and leaves no process behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console

from ssdsl.interrupts import was_interrupted
from ssdsl.run.errors import TooFewDevices
from ssdsl.run.failures import failed_ranks, failure, printed, stuck, writing
from ssdsl.run.processes import MARK, StopSignal, stop, stop_signals
from ssdsl.run.progress import Progress
from ssdsl.run.results import RunResult, read_result
from ssdsl.run.search_path import search_path
from ssdsl.runtime.health.stall import BEATS_S, StalledRank, State, find_stall, read_states
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError

POLL_S = 0.1
PATIENCE_S = 10.0  # ranks find a hanging rank by themselves; they may take so much longer than the launcher's limit
END_S = 4.0  # torchrun may take so long to end the run after a rank has written its error


# options of torchrun: ranks are copies of one process that has loaded torch, and each starts in a third of the time
FORKED = ("--start-method", "forkserver", "--run-path", str(Path(__file__).with_name("forked_rank.py")))
LONGEST = 70  # bytes of a folder: a socket of multiprocessing in it has a path of at most 107, Linux's limit


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of a run, which all run the same command; this one is number `rank` of `count`.

    `endpoint` is `host:port` of the first one, for the rendezvous.
    """

    count: int = 1
    rank: int = 0
    endpoint: str = ""

    def share(self, processes: int) -> range:
        """The ranks of this machine."""
        each = processes // self.count
        return range(self.rank * each, (self.rank + 1) * each)

    def where(self, each: int) -> list[str]:
        """torchrun's arguments for so many processes on each machine."""
        number = ["--nproc-per-node", str(each)]
        if self.count == 1:
            return ["--standalone", "--local-addr", "127.0.0.1", *number]
        meeting = ["--rdzv-backend", "static", "--rdzv-endpoint", self.endpoint]
        return ["--nnodes", str(self.count), "--node-rank", str(self.rank), *meeting, *number]

    @property
    def is_local(self) -> bool:
        """Whether this machine is the only one."""
        return self.count == 1 or self.endpoint.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


ONE_NODE = Nodes()


def launch(
    folder: Path,
    training: Training,
    *,
    processes: int,
    out: Path,
    dump: bool = False,
    console: Console | None = None,
    nodes: Nodes = ONE_NODE,
    max_restarts: int = 0,
) -> RunResult:
    """Trains `folder`/main.py on the processes of this machine; `out` receives the results.

    With several nodes, the first gets the results of all ranks. `dump` makes every rank save its gradients and weights.
    After a failure torchrun restarts all ranks, up to `max_restarts` times. Raises PlanError with the error of the rank
    that failed first.
    """
    if training.device == "cuda" and training.backend is None:
        _need_gpus(processes // nodes.count)
    mark, ranks = uuid4().hex, nodes.share(processes)
    program = [str(folder / "main.py"), *training.arguments(), "--out", str(out), *(["--dump"] if dump else [])]
    command = [*_agent(nodes.where(len(ranks)), max_restarts, out), *(FORKED if _forks(training) else ()), *program]
    reader = _StatusReader(out, ranks, training.timeout_s, nodes.count == 1 and max_restarts == 0)
    if was_interrupted():  # and the import of torch has swallowed it
        raise KeyboardInterrupt
    with writing(out), stop_signals() as asked:
        _clear(out)
        agent = _start(command, out / "torchrun.log", _environment(mark, nodes.is_local))
        try:
            with Progress(out / "metrics.jsonl", training.steps, console) as progress:
                stall = reader.until_end(agent, progress, _Stopping(asked, reader, training.save is not None))
        finally:
            stop(agent, mark)
        if stall is not None:
            raise PlanError(stuck(stall, training.timeout_s))
        if agent.returncode != 0 or failed_ranks(out):
            raise PlanError(failure(out, agent.returncode, printed(agent), training.timeout_s))
    return read_result(out, training.steps, range(processes) if nodes.rank == 0 else ranks)


@dataclass(frozen=True, slots=True)
class _StatusReader:
    """Reads the status files of this machine's ranks. `alone`: these are all ranks, and a failure ends the run."""

    out: Path
    ranks: range
    timeout_s: float
    alone: bool

    def until_end(
        self, agent: "subprocess.Popen[bytes]", progress: Progress, stopping: "_Stopping"
    ) -> StalledRank | None:
        """Returns None when torchrun has ended, or some time after a rank wrote its error; the stall if a rank is
        stuck."""
        started, failed_at = time.time(), 0.0
        while agent.poll() is None:
            states = read_states(self.out)
            progress.update(states.values())
            stopping.pass_on()
            now = time.time()
            if not failed_at and self.alone and failed_ranks(self.out):
                failed_at = now
            if failed_at and now - failed_at > END_S:
                return None
            if not failed_at and (stall := self._stall(started, states)):
                return stall
            time.sleep(POLL_S)
        progress.update()
        return None

    def _stall(self, started: float, states: dict[int, State]) -> StalledRank | None:
        """The rank at fault. With several machines, the ranks decide themselves as long as one of them here writes its
        status."""
        now = time.time()
        if self.alone:
            return find_stall(states, self.ranks, started, self.timeout_s, now)
        limit_s = self.timeout_s + PATIENCE_S
        silent = {rank: s for rank, s in states.items() if now - s["beat"] > limit_s}
        return find_stall(silent, range(0), started, limit_s, now) if len(silent) == len(self.ranks) else None


@dataclass
class _Stopping:
    """Passes a request to stop on to the ranks of this machine, once; torchrun itself would give them no time to save.
    `saves`: the run has a folder for checkpoints. Otherwise, and before all ranks train, it ends at once."""

    asked: StopSignal
    reader: _StatusReader
    saves: bool
    is_passed_on: bool = False
    first_s: float | None = None  # when this process was seen to be asked

    def pass_on(self) -> None:
        """Asks the ranks, if this process was asked. Raises SystemExit if there is nothing to save."""
        if self.asked.number is None or self.is_passed_on:
            return
        states, now = read_states(self.reader.out), time.monotonic()
        self.first_s = self.first_s or now
        if not self.saves or not all(r in states and states[r]["step"] is not None for r in self.reader.ranks):
            if not self.saves or now - self.first_s > BEATS_S:  # ranks write twice a second that they train
                self.asked.end()
            return
        self.is_passed_on = True
        for rank in self.reader.ranks:
            with suppress(ProcessLookupError):
                os.kill(states[rank]["pid"], signal.SIGTERM)


def _forks(training: Training) -> bool:
    """Whether ranks can be copies of one process: on CPUs, on Linux, and where the path of temporary files leaves room
    for the name of a socket."""
    is_cpu = training.device == "cpu" and sys.platform == "linux"
    return is_cpu and len(os.fsencode(tempfile.gettempdir())) <= LONGEST


def _agent(where: list[str], max_restarts: int, out: Path) -> list[str]:
    """The torchrun command, up to the program."""
    agent = [sys.executable, "-m", "ssdsl.run.torchrun_agent", *where, "--max-restarts", str(max_restarts)]
    return [*agent, "--log-dir", str(out / "logs"), "--redirects", "3"]


def _start(command: list[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    with log.open("wb") as errors:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        return subprocess.Popen(command, env=environment, start_new_session=True, **given)


def _environment(mark: str, is_local: bool) -> dict[str, str]:
    """The environment of ranks: one thread per process, gloo on the loopback interface (a host's name may not resolve).
    The user's own variables win.

    Python's path has the folders of modules that define operators, such as the model file's.
    """
    defaults = {"OMP_NUM_THREADS": "1"}
    if is_local and "lo" in {name for _, name in socket.if_nameindex()}:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {**defaults, **os.environ, "PYTHONPATH": search_path(), "SSDSL_PARENT": str(os.getpid()), MARK: mark}


def _clear(out: Path) -> None:
    """Makes the folder, and removes results of an earlier run."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "logs", ignore_errors=True)
    for pattern in ("rank*.json", "rank*.err", "rank*.pt", ".rank*", "rank*.state", "metrics.jsonl"):
        for path in out.glob(pattern):
            path.unlink()


def _need_gpus(processes: int) -> None:
    import torch

    if torch.cuda.device_count() < processes:
        raise PlanError(TooFewDevices(None, processes, torch.cuda.device_count()))
