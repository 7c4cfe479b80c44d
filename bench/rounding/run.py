"""`python -m bench rounding`: does `verify` call right plans wrong, and does it find mistakes of a per cent?

Each model is trained under each plan. A right plan that differs is a false alarm. A mistake is planted in one element
of a gradient, of a share of the largest element of that gradient, wherever the plan ran; one that is not found is
missed. Gradients that are zero but for rounding have no largest element to speak of, and no mistake is planted there.
"""

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table

from bench.models.plans import PLANS
from bench.rounding.models import MODELS
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.run.in_process.run_in_process import Finished, program_of, run_in_process
from ssdsl.run.verify.error_growth import EXACT, SingleDevice
from ssdsl.run.verify.single_device import gradient_of
from ssdsl.run.verify.verify import compare_with, difference, trained_by
from ssdsl.runtime.options import Training
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

TRAINING = Training(2, optimizer="sgd", lr=0.02)
TRIED = ("data", "tensor", "1f1b")
PLANTED = "data"  # each device holds every gradient whole
SHARES = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a model: plans that are equal, refused ones, false alarms, and mistakes found of those planted."""

    model: str
    equal: int
    refused: int
    alarms: tuple[str, ...]
    planted: tuple[int, ...]  # for each share
    found: tuple[int, ...]
    found_alone: tuple[int, ...]  # without the second comparison, in float64
    missed: tuple[str, ...]
    seconds: float


def main(arguments: list[str]) -> int:
    """Prints the table; 1 if there was a false alarm, or a mistake was not found."""
    parser = argparse.ArgumentParser(prog="python -m bench rounding", description=__doc__)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="draws the elements")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # tensors are small
    warnings.simplefilter("ignore")
    console = Console()
    rows = []
    for name in options.model or MODELS:
        row = try_model(name, options.seed)
        rows.append(row)
        print(f"{name}: {', '.join(row.alarms + row.missed) or 'right'}", file=sys.stderr, flush=True)
    console.print(table(rows))
    return int(any(r.alarms or r.missed for r in rows))


def try_model(name: str, seed: int = 0, tried: tuple[str, ...] = TRIED) -> Found:
    """A row of the table."""
    start = time.monotonic()
    model = MODELS[name].build()
    graph, device = capture(model), SingleDevice(model, TRAINING)
    programs = {plan: program for plan in tried if (program := compiled(PLANS[plan], graph, model)) is not None}
    alarms = []
    for plan, program in programs.items():
        runs = Runs(device, program)
        if wrong := runs.judged():
            alarms.append(f"{plan}: {wrong}")
        if plan == PLANTED:
            counts, found, alone, missed = plant(runs, Random(f"{name} {seed}"))
    seconds = time.monotonic() - start
    equal, refused = len(programs) - len(alarms), len(tried) - len(programs)
    return Found(name, equal, refused, tuple(alarms), counts, found, alone, missed, seconds)


def compiled(plan_text: str, graph: Graph, model: Model) -> CompiledProgram | None:
    """The program of a plan; None if it is refused."""
    try:
        plan, _ = interpret_all(parse(Source("plan.ssp", plan_text)), graph, {}, Path())
        return program_of(lower(plan), model)
    except PlanError:
        return None


class Runs:
    """A program's run, its run in float64, and what `verify` says of them with a mistake in both."""

    def __init__(self, device: SingleDevice, program: CompiledProgram) -> None:
        self.device = device
        self.finished = run_in_process(program, device.training)
        self.in_float64 = run_in_process(program, device.training, EXACT)

    def judged(self, gradient: str = "", place: float = 0.0, share: float = 0.0, *, alone: bool = False) -> str:
        """The first tensor that differs, and how; empty if none does."""
        changed, exactly = (planted(run, gradient, place, share) for run in (self.finished, self.in_float64))
        plan, spreads = trained_by(self.device.model, self.device.training.steps, changed.losses, changed.dumps)
        try:
            found = difference(compare_with(self.device, plan, spreads, None if alone else lambda: exactly))
        except PlanError as error:
            return str(error)
        return f"{found.what} {found.name}: {found.where}; {found.reason}" if found is not None else ""


def plant(runs: Runs, draw: Random) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Mistakes of each share in each gradient of the first step: planted, found, found by one comparison, missed."""
    names = [*gradients(runs)]
    found, alone, missed = [0] * len(SHARES), [0] * len(SHARES), []
    for n, share in enumerate(SHARES):
        for name in names:
            place = draw.random()
            is_found = bool(runs.judged(name, place, share))
            found[n] += is_found
            alone[n] += bool(runs.judged(name, place, share, alone=True))
            missed += [] if is_found else [f"missed: {share:.0%} of {name}"]
    return (len(names),) * len(SHARES), tuple(found), tuple(alone), tuple(missed)


def gradients(runs: Runs) -> Iterator[str]:
    """The gradients that are not zero but for rounding."""
    device = runs.device
    best = device.exact or device.trained
    for name, grad in best.grads[0].items():
        noise = device.growth[gradient_of(0, name)] * (1 if device.exact is None else 2.0**-20)
        if float(grad.abs().max()) > 100 * noise:
            yield name


def planted(run: Finished, name: str, place: float, share: float) -> Finished:
    """The run with one element of a gradient larger by a share of the largest, on all ranks alike."""
    if not name:
        return run
    dumps = copy.copy(run.dumps)
    for rank, dump in run.dumps.items():
        first, *later = dump["grads"]
        piece = first[name]
        tensor = piece["tensor"].clone()
        flat = tensor.view(-1)
        flat[int(place * len(flat))] += share * float(tensor.abs().max())
        dumps[rank] = {**dump, "grads": [{**first, name: {**piece, "tensor": tensor}}, *later]}
    return Finished(run.losses, dumps, run.counts)


def table(rows: list[Found]) -> Table:
    """A line for each model, and the sums."""
    heads = [head for share in SHARES for head in (f"{share:.0%} found", "by one")]
    title = f"{len(rows)} models, {sum(r.equal for r in rows)} equal, {sum(len(r.alarms) for r in rows)} false alarms"
    made = Table(Column("model", no_wrap=True), "equal", "refused", "alarms", *heads, "s", title=title, box=box.SIMPLE)
    for r in rows:
        made.add_row(r.model, str(r.equal), str(r.refused), str(len(r.alarms)), *_shares([r]), f"{r.seconds:.1f}")
    made.add_section()
    alarms, seconds = sum(len(r.alarms) for r in rows), sum(r.seconds for r in rows)
    sums = (str(sum(r.equal for r in rows)), str(sum(r.refused for r in rows)), str(alarms))
    made.add_row("all", *sums, *_shares(rows), f"{seconds:.0f}")
    return made


def _shares(rows: list[Found]) -> list[str]:
    """For each share how many mistakes were found of those planted, and how many without a run in float64."""
    return [
        f"{sum(counts[n] for counts in (r.found if both else r.found_alone for r in rows))}"
        f" of {sum(r.planted[n] for r in rows)}"
        for n in range(len(SHARES))
        for both in (True, False)
    ]
