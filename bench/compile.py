"""Compile time and memory of a deep GPT on up to 1024 devices, and a simulated step; the capture is shown apart.

Each measurement is a fresh process on one core: it captures the model, resets the kernel's mark of its peak memory and
compiles. The peak includes Python, torch and the captured graph; `own` is what the compiler adds to them.
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from ssdsl.show.view import Column, Kind, View, table

if TYPE_CHECKING:
    from ssdsl.model.graph import Graph
    from ssdsl.model.source import Model

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "examples" / "megatron.ssp"
SLACK = 1.15  # how far above a straight line still counts as linear
Times = dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the widths of the Megatron plan on it."""

    layers: int = 24
    dp: int = 8
    tp: int = 8
    pp: int = 8
    micro_batches: int = 16
    size: str = "1.3b"
    batch: int = 512

    @property
    def model(self) -> str:
        return f"gpt:{self.size},layers={self.layers},batch={self.batch},dtype=bf16"

    @property
    def settings(self) -> dict[str, int]:
        return {"D": self.dp, "T": self.tp, "S": self.pp, "M": self.micro_batches}


WIDE = Case()
NARROW = Case(dp=1, tp=2, pp=2)
LAYERS = (Case(layers=8), WIDE, Case(layers=96))
MICRO_BATCHES = (Case(micro_batches=8), WIDE, Case(micro_batches=32), Case(micro_batches=64))
GPT_3 = Case(layers=96, pp=16, micro_batches=128, size="175b", batch=1024)
CASES = tuple(dict.fromkeys((WIDE, NARROW, *LAYERS, *MICRO_BATCHES, GPT_3)))


def compile_program(model: "Model", graph: "Graph", settings: dict[str, int]) -> Iterator[str]:
    """The compiler from the plan's text to the program's files, and a simulated step; yields the name of each pass when
    it is done."""
    from ssdsl.cluster.load import load_cluster
    from ssdsl.codegen.write import write_program
    from ssdsl.collector import paused_collector
    from ssdsl.compile import make_plan
    from ssdsl.lang.read import read_source
    from ssdsl.lower.lower import lower
    from ssdsl.prove.prove import require_proof
    from ssdsl.simulate.simulate import simulate

    cluster = load_cluster("a100x1024")
    yield "import"
    with paused_collector():  # as `compile_plan` does
        plan, _ = make_plan(read_source(PLAN), graph, settings, PLAN.parent)
        yield "plan"
        program = lower(plan, cluster)
        yield "lower"
        require_proof(program)
        yield "prove"
    with tempfile.TemporaryDirectory() as folder:
        write_program(program, model, Path(folder) / "program", read_source(PLAN))
    yield "write"
    simulate(program, read_source(PLAN), cluster)
    yield "simulate"


def measure(case: Case) -> Times:
    """Seconds of the capture and of each pass, peak memory in MB; in this process."""
    from ssdsl.model.load import load
    from ssdsl.model.trace import capture

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    start = time.perf_counter()
    graph = capture(model := load(case.model, meta=True))
    times = {"capture": time.perf_counter() - start}

    passes = compile_program(model, graph, case.settings)
    assert next(passes) == "import"
    held_mb = reset_peak()
    start = before = time.perf_counter()
    for name in passes:
        now = time.perf_counter()
        times[name], before = now - before, now
    compiled = sum(times[name] for name in ("plan", "lower", "prove", "write"))
    return times | {"total": compiled, "peak_mb": peak_mb(), "own_mb": peak_mb() - held_mb}


def reset_peak() -> float:
    """Lower the kernel's mark of the peak to what is held now, and return that; where it cannot, capture counts too."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(arguments: list[str] | None = None) -> int:
    """Measure all cases and print the table; 1 if one does not compile."""
    args = read_arguments(arguments)
    if args.case:
        print(json.dumps(measure(Case(**json.loads(args.case)))))
        return 0
    talk = Console(stderr=True)
    runs: dict[Case, list[Times]] = {case: [] for case in CASES}
    for case in track(CASES * args.rounds, "compiling", console=talk, transient=True):
        try:
            runs[case].append(measure_apart(case))
        except subprocess.CalledProcessError as error:
            talk.print(f"[red]{case} does not compile[/red]: {error.stderr.strip().splitlines()[-1]}", highlight=False)
            return 1
    medians = {case: {key: statistics.median(t[key] for t in own) for key in own[0]} for case, own in runs.items()}
    console = Console()
    console.print(table(view(medians), console.width))
    for claim, holds in claims(medians):
        console.print(f"{'[green]yes[/green]' if holds else '[red]no [/red]'}  {claim}", highlight=False)
    return 0


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench compile", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes for each case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure_apart(case: Case) -> Times:
    """The measurement of a case in a fresh process of one thread."""
    command = [sys.executable, "-m", "bench.compile", "--case", json.dumps(asdict(case))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def view(medians: dict[Case, Times]) -> View:
    keys = next(iter(medians.values())).keys()
    columns = [Column(heading, Kind.COUNT) for heading in ("layers", "dp", "tp", "pp", "micro-batches")]
    columns += [Column(*_heading(key)) for key in keys]
    rows = []
    for case, times in medians.items():
        widths = case.layers, case.dp, case.tp, case.pp, case.micro_batches
        rows.append((*widths, *(int(1e6 * times[key]) if key.endswith("_mb") else times[key] for key in keys)))
    return View("Compiling a GPT under megatron.ssp, on one core", tuple(columns), tuple(rows))


def _heading(key: str) -> tuple[str, Kind]:
    return (key.removesuffix("_mb"), Kind.BYTES) if key.endswith("_mb") else (key, Kind.SECONDS)


def claims(medians: dict[Case, Times]) -> Iterator[tuple[str, bool]]:
    """What the compiler promises, and whether these numbers show it."""
    total = {case: times["total"] for case, times in medians.items()}
    peak = medians[WIDE]["peak_mb"]
    fits = total[WIDE] <= 2 and peak <= 500
    both, most = total[GPT_3] + medians[GPT_3]["simulate"], medians[GPT_3]["peak_mb"]
    words = (
        f"GPT-3 on 1024 devices, 128 micro-batches, compiled and simulated: {both:.1f} s (at most 10), {most:.0f} MB"
    )
    yield f"{words} (at most 1000)", both <= 10 and most <= 1000
    yield f"512 devices: {total[WIDE]:.2f} s (at most 2), {peak:.0f} MB (at most 500)", fits
    share = total[NARROW] / total[WIDE]
    yield f"widths cost nothing: 4 devices take {share:.2f} of the time of 512 (at least 0.33)", share >= 1 / 3
    for axis, cases in (("layers", LAYERS), ("micro_batches", MICRO_BATCHES)):
        sizes = [getattr(case, axis) for case in cases]
        growth = [total[case] / total[cases[0]] for case in cases]
        text = ", ".join(f"{size}: {factor:.1f}x" for size, factor in zip(sizes, growth, strict=True))
        steps = itertools.pairwise(cases)
        linear = all(total[b] / total[a] <= SLACK * getattr(b, axis) / getattr(a, axis) for a, b in steps)
        yield f"at most linear in {axis.replace('_', '-')}: {text}", linear


if __name__ == "__main__":
    raise SystemExit(main())
