"""What the engine adds to a compiled program: to a step, to a save and to a load. One launch of each plan.

Ratios are medians over the rounds of one launch, of times that stand beside each other in it; `noise` is the ratio of
the bare step to itself, measured in the same way. A step with a loader stands beside a bare one with a DataLoader.
Processor time tells what the engine computes; the clock also how ranks wait for each other, and other programs.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.contenders import Plan
from bench.launch import TORCHRUN, Failed, call, compile_plan

LIMIT = 1.02  # a step of the engine's may take so many times as long as the bare one


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, and its processes."""

    name: str
    plan: Plan
    processes: int = 2


CASES = (
    Case("data parallel x2", Plan("examples/data_parallel.ssp", ("D=2",))),
    Case("ZeRO-1 x2", Plan("examples/zero.ssp", ("D=2", "Z=1"))),
    Case("ZeRO-3 x2", Plan("examples/zero.ssp", ("D=2", "Z=3"))),
    Case("1F1B x2", Plan("examples/megatron.ssp", ("T=1", "S=2", "M=4"))),
    Case("megatron x4", Plan("examples/megatron.ssp", ("T=2", "S=2", "M=4")), 4),
)
Ranks = list[dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, print its tables; 1 if a plan failed."""
    parser = argparse.ArgumentParser(prog="python -m bench training", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="blocks of steps of each kind")
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose name has this in it")
    parser.add_argument("--model", default="gpt:small", help="the model that is trained")
    args = parser.parse_args(arguments)
    found: dict[str, Ranks] = {}
    failures = {}
    for case in CASES:
        if args.only in case.name:
            try:
                found[case.name] = measured(case, args)
            except Failed as failed:
                failures[case.name] = str(failed)
    console = Console()
    console.print(steps_table(found, args.model), checkpoints_table(found))
    for name, why in failures.items():
        console.print(f"[red]{name}[/red]: {why}", soft_wrap=True, highlight=False)
    return 1 if failures else 0


def measured(case: Case, args: argparse.Namespace) -> Ranks:
    """What each rank of a plan measures."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program", Path(folder) / "out"
        compile_plan(case.plan, program, args.model)
        options = ("--steps", str(args.steps), "--rounds", str(args.rounds), "--out", str(out))
        processes = f"--nproc-per-node={case.processes}"
        call([*TORCHRUN, processes, "-m", "bench.training_rank", str(program), *options])
        return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(case.processes)]


def steps_table(found: dict[str, Ranks], model: str) -> Table:
    """Two rows for each plan: the bare step, and the engine's beside it."""
    result = _table(f"A step of {model} by the engine, beside the compiled program alone, one thread a process")
    for heading in ("plan", "", "bare, ms", "noise", "step", "with loader", "with clip"):
        result.add_column(heading, justify="left" if heading in ("plan", "") else "right", no_wrap=True)
    for name, ranks in found.items():
        for kind in ("clock", "processor"):
            steps = [rank[kind] for rank in ranks]
            bare = max(statistics.median(rank["bare"]) for rank in steps)
            noise, step, loader, clip = (
                statistics.median(ratio(rank[way], rank[than]) for rank in steps)
                for way, than in (("again", "bare"), ("step", "bare"), ("loader", "fed"), ("clip", "bare"))
            )
            plan = name if kind == "clock" else ""
            result.add_row(plan, kind, f"{bare:.1f}", f"{noise:.3f}", _judged(step), _judged(loader), f"{clip:.3f}")
    return result


def checkpoints_table(found: dict[str, Ranks]) -> Table:
    """A row for each plan, of its slowest rank."""
    result = _table("Saving and loading, of the slowest rank; in ms, and beside the least that could do it")
    headings = ("plan", "MB", "save", "/ copy", "whole save", "steps beside", "load", "/ torch.load")
    for heading in headings:
        result.add_column(heading, justify="left" if heading == "plan" else "right", no_wrap=True)
    for name, ranks in found.items():
        save, whole, load = (max(statistics.median(r[way]) for r in ranks) for way in ("save", "write", "load"))
        most = max(ranks, key=lambda r: r["bytes"])  # one that owns nothing has next to nothing to copy
        result.add_row(
            name,
            f"{sum(r['bytes'] for r in ranks) / 1e6:.0f}",
            f"{save:.1f}",
            f"{ratio(most['save'], most['copy']):.2f}",
            f"{whole:.0f}",
            f"{ratio(ranks[0]['beside'], ranks[0]['without']):.2f}",
            f"{load:.0f}",
            f"{max(ratio(r['load'], r['read']) for r in ranks):.2f}",
        )
    return result


def ratio(one: list[float], other: list[float]) -> float:
    """The median ratio of times that stand beside each other."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def _judged(value: float) -> str:
    return f"[green]{value:.3f}[/green]" if value <= LIMIT else f"[red]{value:.3f} ![/red]"


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


if __name__ == "__main__":
    raise SystemExit(main())
