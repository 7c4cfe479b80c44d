"""Runs one contender: compiles it if it is a plan, starts torchrun, reads what each rank wrote."""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.contenders import GPT, Contender, Plan

ROOT = Path(__file__).resolve().parent.parent
SSDSL = (sys.executable, "-m", "ssdsl")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
LIMIT_S = 600


class Failed(Exception):
    """A contender did not compile or did not run; the message is the last line that says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One launch: the median step of the slowest rank on the clock, and of its processor time; the first step, and the
    processor time of a rank up to its end; the number of compiled runs of a plan's rank; the most that a rank held
    beyond what it began with; the loss of every step."""

    step_ms: float
    processor_ms: float
    first_s: float
    started_s: float
    compiled: int
    peak_mb: float
    losses: tuple[float, ...]


def compile_plan(plan: Plan, folder: Path, model: str = GPT) -> None:
    """Write the program of a plan into `folder`."""
    call([*SSDSL, "compile", *plan.words, "--model", model, "-o", str(folder)])


def launch(
    contender: Contender, folder: Path, steps: int, warmup: int, link: str | None = None, sleep: float | None = None
) -> Run:
    """Train for `warmup` steps and then `steps` timed ones; `folder` holds a compiled program, the results, and the
    kernels that torch.compile has made in an earlier launch.

    `link` is the speed of an emulated network. With `sleep` products sleep, at so many GFLOP/s.
    """
    out = folder / "out"
    if isinstance(contender.program, Plan):
        options = ("--device", "cpu", "--optimizer", "adamw", "--lr", "1e-3")
        program = [str(folder / "program" / "main.py"), *options]
    else:
        program = ["-m", f"bench.peers.{contender.program}", "--model", contender.model]
        program += [*(["--compiled"] if contender.compiles else []), *contender.options]
    program += ["--link", link] if link is not None and contender.processes > 1 else []
    program = ["-m", "bench.sleeping", str(sleep), *program] if sleep is not None else program
    command = [*TORCHRUN, f"--nproc-per-node={contender.processes}", *program]
    kernels = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "kernels")}
    call([*command, "--steps", str(warmup + steps), "--out", str(out)], environment=kernels)
    return read_run([json.loads((out / f"rank{r}.json").read_text()) for r in range(contender.processes)], warmup)


def read_run(ranks: list[dict[str, Any]], warmup: int) -> Run:
    slowest = slowest_of(ranks, "step_s")
    used = slowest_of([{"used": [b - a for a, b in pairwise(rank["processor_s"])]} for rank in ranks], "used")
    losses = next(rank["losses"] for rank in ranks if rank.get("losses"))
    return Run(
        step_ms=statistics.median(slowest[warmup:]) * 1e3,
        processor_ms=statistics.median(used[max(warmup - 1, 0) :] or [0.0]) * 1e3,
        first_s=slowest[0],
        started_s=max(rank["processor_s"][0] for rank in ranks),
        compiled=max(sum(rank.get("runs", {}).get(how, 0) for how in ("compiled", "loaded")) for rank in ranks),
        peak_mb=max(rank["peak_bytes"] - rank["base_bytes"] for rank in ranks) / 1e6,
        losses=tuple(losses),
    )


def slowest_of(ranks: list[dict[str, Any]], key: str) -> list[float]:
    """The most of all ranks, step by step."""
    return [max(step) for step in zip(*(rank[key] for rank in ranks), strict=True)]


def call(command: list[str], limit_s: float = LIMIT_S, environment: Mapping[str, str] = {}) -> str:
    """Run a command in the repository, one thread a process; on a time-out end it and its children. Returns what it
    printed."""
    known = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment
    process = subprocess.Popen(
        command, cwd=ROOT, env=known, start_new_session=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        printed, talk = process.communicate(timeout=limit_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"not done after {limit_s:.0f} s") from None
        raise
    if process.returncode != 0:
        raise Failed(reason(printed + talk))
    return printed


def reason(talk: str) -> str:
    """The first line that names an error, else the last one."""
    lines = [line.strip() for line in talk.splitlines() if line.strip()] or ["no word"]
    return next((line for line in lines if "rror:" in line or line.startswith("error[")), lines[-1])
