"""Plans that a search finds, run for real: each beside the plans of `examples/` over all their widths.

The cluster is measured here first. Every setting that simulates near the best one is profiled, for the search, and run
once; the fastest of these and the plan found then take turns over some rounds. The plan found is as good as the best of
all if it is no slower beyond what its own times differ from round to round.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.contenders import Contender, Maker, Plan
from bench.launch import ROOT, SSDSL, Failed, call, compile_plan, launch
from bench.steps import turns
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.lang.read import read_source
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.diagnostic import PlanError
from ssdsl.workspace import Workspace

MODELS = "gpt:small", "swin:small", "bench/unet.py:small", "tests/models/eager_gpt.py:timed"
FOUND = "found"


@dataclass(slots=True)
class Racer:
    """A plan with its settings: its simulated step, and those that were run, in milliseconds."""

    contender: Contender
    simulated_ms: float
    runs: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """By how much its own times differ, as a share of the median."""
        return (max(self.runs) - min(self.runs)) / self.median_ms


def main(arguments: list[str] | None = None) -> int:
    """Search, run and print a table for each model and number of processes; 1 if a plan found is slower than others."""
    args = read_arguments(arguments)
    console, slower = Console(), 0
    with tempfile.TemporaryDirectory() as folder:
        toml = Path(folder) / "here.toml"
        call([*SSDSL, "clusters", "measure", "-o", str(toml)])
        for model in args.model or MODELS:
            for processes in args.processes:
                racers = race(model, processes, toml, args)
                console.print(table(f"{model} on {processes} processes", racers))
                slower += is_slower(racers)
    return min(slower, 1)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench found", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="as `ssdsl search --model`; repeatable")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--near", type=float, default=2.0, help="run what simulates within so many times the best")
    parser.add_argument("--rounds", type=int, default=4, help="of the fastest ones and the plan found")
    parser.add_argument("--fastest", type=int, default=4, help="how many take part in the rounds")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a launch")
    return parser.parse_args(arguments)


def race(model: str, processes: int, toml: Path, args: argparse.Namespace) -> list[Racer]:
    """The plan found, and the fastest others, with their times of all rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        racers = near(model, processes, load_cluster(str(toml)), args.near)
        costs = profile(racers, folder)
        others = sorted(alone(racers, folder, args), key=lambda racer: racer.median_ms)[: args.fastest]
        racers = [searched(model, processes, toml, costs, folder), *others]
        for racer in turns(racers, args.rounds):
            run(racer, folder, args)
        return racers


def near(model: str, processes: int, cluster: Cluster, most: float) -> list[Racer]:
    """All settings of all examples that simulate within `most` times the best, on so many devices."""
    graph = capture(load(model, meta=True))
    workspace, index, found = Workspace(graph, cluster), index_model(graph), list[Racer]()
    devices = range(processes, processes + 1)
    for path in sorted((ROOT / "examples").glob("*.ssp")):
        try:
            sketch = sketch_of(read_source(path), path.parent, index, devices, {})
        except PlanError:
            continue
        for values in sketch.settings(devices):
            try:
                candidate = workspace.candidate(sketch.source, sketch.overrides(values), sketch.folder)
                report = workspace.simulate(candidate, cluster)
            except PlanError:
                continue
            settings = tuple(f"{name}={value}" for name, value in sketch.overrides(values).items())
            plan = Plan(str(path.relative_to(ROOT)), settings)
            name = " ".join([path.stem, *settings])
            contender = Contender(name, "", Maker.OURS, plan, processes, model)
            found.append(Racer(contender, report.step_s * 1e3))
    least = min(racer.simulated_ms for racer in found)
    return [racer for racer in found if racer.simulated_ms <= most * least]


def profile(racers: list[Racer], folder: Path) -> Path:
    """The times of the operators of these plans, measured."""
    costs, model = folder / "costs.json", racers[0].contender.model
    plans = (racer.contender.program for racer in racers)
    words = [",".join([plan.path, *plan.settings]) for plan in plans if isinstance(plan, Plan)]
    call([*SSDSL, "profile", *words, "--model", model, "-o", str(costs)], limit_s=1800)
    return costs


def searched(model: str, processes: int, toml: Path, costs: Path, folder: Path) -> Racer:
    """The plan that `ssdsl search` finds without a word about plans."""
    plan = folder / "found.ssp"
    options = ("--cluster", str(toml), "--devices", str(processes), "--costs", str(costs), "-o", str(plan))
    call([*SSDSL, "search", "--model", model, *options])
    contender = Contender(FOUND, "", Maker.OURS, Plan(str(plan)), processes, model)
    compile_plan(Plan(str(plan)), folder / FOUND / "program", model)
    return Racer(contender, 0.0)


def alone(racers: list[Racer], folder: Path, args: argparse.Namespace) -> Iterator[Racer]:
    """Runs each once; yields those that ran."""
    for racer in racers:
        home = folder / racer.contender.name
        try:
            assert isinstance(racer.contender.program, Plan)
            compile_plan(racer.contender.program, home / "program", racer.contender.model)
            run(racer, folder, args)
        except Failed as failed:
            print(f"{racer.contender.name}: {failed}")
            continue
        yield racer


def run(racer: Racer, folder: Path, args: argparse.Namespace) -> None:
    home = folder / racer.contender.name
    racer.runs.append(launch(racer.contender, home, args.steps, 3).step_ms)
    shutil.rmtree(home / "out")


def is_slower(racers: list[Racer]) -> bool:
    """Whether the plan found is slower than the fastest other one, beyond what its own times differ."""
    found, *others = racers
    return found.median_ms > min(racer.median_ms for racer in others) * (1 + found.spread)


def table(title: str, racers: list[Racer]) -> Table:
    """A row for each plan, the fastest first."""
    result = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    result.add_column("plan", no_wrap=True)
    for heading in ("simulated ms", "ms", "noise"):
        result.add_column(heading, justify="right", no_wrap=True)
    for racer in sorted(racers, key=lambda racer: racer.median_ms):
        simulated = f"{racer.simulated_ms:.1f}" if racer.simulated_ms else ""
        result.add_row(racer.contender.name, simulated, f"{racer.median_ms:.1f}", f"{racer.spread:.0%}")
    return result
