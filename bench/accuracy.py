"""How right the simulator is: real runs of plans on this machine against their simulations.

Each plan trains for some steps; its simulation uses the times of tasks that this run measured (`--profile`,
`--costs`), and a second one nothing but the cluster `laptop`. Both must order the plans as the real runs do.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, median
from typing import Any

from rich.console import Console
from rich.table import Table

MODEL = "gpt:small,layers=8,batch=16"
PLANS: dict[str, tuple[str, dict[str, int]]] = {
    "data parallel x2": ("data_parallel", {"D": 2}),
    "tensor parallel x2": ("tensor_parallel", {"T": 2}),
    "sequence parallel x2": ("sequence_parallel", {"T": 2}),
    "ZeRO-1 x2": ("zero", {"D": 2, "Z": 1}),
    "ZeRO-3 x2": ("zero", {"D": 2, "Z": 3}),
    "co-shard x1": ("co_shard", {"D": 1, "C": 4}),
    "co-shard x2": ("co_shard", {"D": 2, "C": 4}),
    "GPipe x2, 2 micro-batches": ("pipeline", {"S": 2, "M": 2}),
    "GPipe x2, 8 micro-batches": ("pipeline", {"S": 2, "M": 8}),
    "1F1B x2, 4 micro-batches": ("megatron", {"S": 2, "T": 1, "M": 4}),
    "ZB-H1 x2, 4 micro-batches": ("zero_bubble", {"S": 2, "M": 4}),
    "interleaved x2, 4 micro-batches": ("interleaved", {"S": 2, "V": 2, "M": 4}),
    "one device": ("data_parallel", {"D": 1}),
}


@dataclass(frozen=True)
class Outcome:
    """A plan's step time in seconds and peak memory in bytes: measured, by measured costs, by the cluster alone."""

    step: tuple[float, float, float]
    peak: tuple[int, int]


def main(arguments: list[str]) -> int:
    """Runs and simulates every plan, and prints both with their errors and rank correlations."""
    parser = argparse.ArgumentParser(prog="python -m bench accuracy", description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", default=MODEL)
    options = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (plan, params) in PLANS.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            found[name] = _outcome(plan, params, options.model, options.steps, Path(folder) / "costs.json")
    console = Console()
    console.print(_steps(found))
    console.print(_peaks(found))
    return 0


def _outcome(plan: str, params: dict[str, int], model: str, steps: int, costs: Path) -> Outcome:
    sets = [word for name, value in params.items() for word in ("--set", f"{name}={value}")]
    common = [plan, "--model", model, *sets, "--json"]
    ranks = _ssdsl("run", *common, "--steps", str(steps), "--profile", str(costs))
    measured = median(max(times) for times in zip(*(r["step_s"][1:] for r in ranks), strict=True))
    peak = max(r["tensor_bytes"] for r in ranks)
    with_costs = _ssdsl("simulate", *common, "--costs", str(costs))
    alone = _ssdsl("simulate", *common)
    return Outcome((measured, with_costs["step_s"], alone["step_s"]), (peak, alone["peak_bytes"]))


def _ssdsl(*words: str) -> Any:
    done = subprocess.run([sys.executable, "-m", "ssdsl", *words], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def _steps(found: dict[str, Outcome]) -> Table:
    table = Table("plan", "measured ms", "measured costs ms", "error", "laptop ms", "error", title="step time")
    for name, outcome in found.items():
        real, costs, alone = outcome.step
        table.add_row(name, _ms(real), _ms(costs), _error(costs, real), _ms(alone), _error(alone, real))
    real, costs, alone = zip(*(o.step for o in found.values()), strict=True)
    table.add_section()
    table.add_row("rank correlation", "", f"{spearman(real, costs):.3f}", "", f"{spearman(real, alone):.3f}", "")
    return table


def _peaks(found: dict[str, Outcome]) -> Table:
    table = Table(
        "plan", "measured MB", "simulated MB", "error", title="peak memory of the fullest process: what tensors take"
    )
    for name, outcome in found.items():
        real, simulated = outcome.peak
        table.add_row(name, f"{real / 1e6:.0f}", f"{simulated / 1e6:.0f}", _error(simulated, real))
    real, simulated = zip(*(o.peak for o in found.values()), strict=True)
    table.add_section()
    table.add_row("rank correlation", "", f"{spearman(real, simulated):.3f}", "")
    return table


def spearman(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The correlation of the ranks of two lists."""
    return correlation(_ranks(a), _ranks(b))


def _ranks(values: tuple[float, ...]) -> list[float]:
    """Each value's place in the sorted list, from 1; equal ones share the mean of theirs."""
    return [sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2 for value in values]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _error(simulated: float, real: float) -> str:
    return f"{simulated / real - 1:+.1%}"
