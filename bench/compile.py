"""Compile time and memory of a deep GPT on up to 1024 devices, and a simulated step; the capture is shown apart.

Each measurement is a fresh process on one core: it captures the model, resets the kernel's mark of its peak memory and
compiles. The peak includes Python, torch and the captured graph; `own` is what the compiler adds to them.
"""

import argparse
import itertools
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from bench.compile_against import against, measure_apart
from bench.compile_once import Job, Times
from bench.same.checkouts import ROOT
from ssdsl.show.view import Column, ColumnKind, View, table

PLAN = ROOT / "examples" / "megatron.ssp"
SLACK = 1.15  # how far above a straight line still counts as linear
SHOWN = ("capture", "plan", "lower", "prove", "write", "simulate", "total", "peak_mb", "own_mb")


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
    def job(self) -> Job:
        settings = {"D": self.dp, "T": self.tp, "S": self.pp, "M": self.micro_batches}
        return Job(self.model, str(PLAN), settings)


WIDE = Case()
NARROW = Case(dp=1, tp=2, pp=2)
LAYERS = (Case(layers=8), WIDE, Case(layers=96))
MICRO_BATCHES = (Case(micro_batches=8), WIDE, Case(micro_batches=32), Case(micro_batches=64))
GPT_3 = Case(layers=96, pp=16, micro_batches=128, size="175b", batch=1024)
CASES = tuple(dict.fromkeys((WIDE, NARROW, *LAYERS, *MICRO_BATCHES, GPT_3)))


def main(arguments: list[str] | None = None) -> int:
    """Measure all cases and print the table; 1 if one does not compile."""
    args = read_arguments(arguments)
    if args.against:
        return against(args)
    talk = Console(stderr=True)
    runs: dict[Case, list[Times]] = {case: [] for case in CASES}
    for case in track(CASES * args.rounds, "compiling", console=talk, transient=True):
        try:
            runs[case].append(measure_apart(ROOT, case.job))
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
    parser.add_argument("--against", metavar="REV", help="a revision beside this tree, with the bars to reach")
    parser.add_argument("--only", metavar="WORD", action="append", help="with --against: rows with this; repeatable")
    return parser.parse_args(arguments)


def view(medians: dict[Case, Times]) -> View:
    columns = [Column(heading, ColumnKind.COUNT) for heading in ("layers", "dp", "tp", "pp", "micro-batches")]
    columns += [Column(*_heading(key)) for key in SHOWN]
    rows = []
    for case, times in medians.items():
        widths = case.layers, case.dp, case.tp, case.pp, case.micro_batches
        rows.append((*widths, *(int(1e6 * times[key]) if key.endswith("_mb") else times[key] for key in SHOWN)))
    return View("Compiling a GPT under megatron.ssp, on one core", tuple(columns), tuple(rows))


def _heading(key: str) -> tuple[str, ColumnKind]:
    return (key.removesuffix("_mb"), ColumnKind.BYTES) if key.endswith("_mb") else (key, ColumnKind.SECONDS)


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
