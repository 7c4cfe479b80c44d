"""Start a program folder through torchrun, show its progress, read its results; leave no process behind."""

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from ssdsl.model.search_path import search_path
from ssdsl.run.errors import TooFewDevices
from ssdsl.run.failure import failed_ranks, failure, printed, stuck, unwritable
from ssdsl.run.processes import MARK, sigterm_raises, stop
from ssdsl.run.progress import Progress
from ssdsl.run.result import RunResult, read_result
from ssdsl.runtime.stall import Stall, stall_in
from ssdsl.text.diagnostic import PlanError

POLL_S = 0.1
LATER_S = 60.0  # the ranks give up that much later than `launch`, which knows more
END_S = 4.0  # how long torchrun may take to end the run after a rank has written its error


@dataclass(frozen=True, slots=True)
class Training:
    """What to train with: the arguments of every generated program. `data` is the whole path of `file.py:function`."""

    steps: int = 10
    seed: int = 0
    device: str = "cpu"
    optimizer: str = "adamw"
    lr: float = 1e-3
    record: bool = False
    timeout_s: float = 600.0
    data: str | None = None

    def arguments(self) -> list[str]:
        numbers = ["--steps", str(self.steps), "--seed", str(self.seed), "--lr", repr(self.lr)]
        record = ["--record"] if self.record else []
        timeout = ["--timeout", repr(self.timeout_s + LATER_S)]
        data = ["--data", self.data] if self.data is not None else []
        return [*numbers, *data, "--device", self.device, "--optimizer", self.optimizer, *timeout, *record]


def launch(
    folder: Path,
    training: Training,
    *,
    processes: int,
    out: Path,
    dump: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train `folder`/main.py on that many processes; `out` receives their results.

    `dump` makes every rank save its gradients and weights. Raises PlanError with the error of the rank that failed
    first.
    """
    if training.device == "cuda":
        _need_gpus(processes)
    try:
        return _launch(folder, training, processes, out, dump, console)
    except OSError as error:
        raise PlanError(unwritable(error, out)) from error


def _launch(
    folder: Path, training: Training, processes: int, out: Path, dump: bool, console: Console | None
) -> RunResult:
    _clear(out)
    mark = uuid4().hex
    command = _command(folder, training, processes, out, dump)
    with sigterm_raises(), (out / "torchrun.log").open("wb") as log:
        agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(mark),
            start_new_session=True,
        )
        try:
            with Progress(out / "metrics.jsonl", training.steps, console) as progress:
                stall = _watch(agent, out, progress, processes, training.timeout_s)
        finally:
            stop(agent, mark)
    if stall is not None:
        raise PlanError(stuck(stall, training.timeout_s))
    if agent.returncode != 0 or failed_ranks(out):
        raise PlanError(failure(out, agent.returncode, printed(agent)))
    return read_result(out, training.steps, processes)


def _watch(
    agent: "subprocess.Popen[bytes]", out: Path, progress: Progress, ranks: int, timeout_s: float
) -> Stall | None:
    """Return when torchrun has ended, or a while after a rank wrote down its error, or with a rank that is stuck."""
    started, failed_at = time.time(), 0.0
    while agent.poll() is None:
        progress.update()
        now = time.time()
        if not failed_at and failed_ranks(out):
            failed_at = now
        if failed_at and now - failed_at > END_S:
            return None
        if not failed_at and (stall := stall_in(out, ranks, started, timeout_s)):
            return stall
        time.sleep(POLL_S)
    progress.update()
    return None


def _command(folder: Path, training: Training, processes: int, out: Path, dump: bool) -> list[str]:
    agent = [sys.executable, "-m", "ssdsl.run.agent"]
    where = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(processes)]
    logs = ["--log-dir", str(out / "logs"), "--redirects", "3"]
    program = [str(folder / "main.py"), *training.arguments(), "--out", str(out)]
    return [*agent, *where, *logs, *program, *(["--dump"] if dump else [])]


def _environment(mark: str) -> dict[str, str]:
    """One thread per process, gloo on the loopback interface (a host's name may not resolve). The user's own win.

    Modules that define operators are found where they were found here: beside the model's file, for instance.
    """
    defaults = {"OMP_NUM_THREADS": "1"}
    if "lo" in {name for _, name in socket.if_nameindex()}:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {**defaults, **os.environ, "PYTHONPATH": search_path(), "SSDSL_PARENT": str(os.getpid()), MARK: mark}


def _clear(out: Path) -> None:
    """Make the folder, without the results of an earlier run."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "logs", ignore_errors=True)
    for pattern in ("rank*.json", "rank*.err", "rank*.pt", ".rank*", "rank*.state", "metrics.jsonl"):
        for path in out.glob(pattern):
            path.unlink()


def _need_gpus(processes: int) -> None:
    import torch

    if torch.cuda.device_count() < processes:
        raise PlanError(TooFewDevices(None, processes, torch.cuda.device_count()))
