"""Step times of compiled plans beside hand-written programs and libraries, which all train the same small model.

A round launches every contender once, in turn, and every other round turns the order around: a machine that slows down
slows all of them. Times are medians over rounds; a ratio is the median of the ratios within each round. Each one's
losses are compared with the single process, step by step: a contender that trains on other numbers has failed.
"""

import argparse
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.contenders import CONTENDERS, LIMITS, SINGLES, Contender, Maker, Plan
from bench.launch import Failed, Run, compile_plan, launch

WIDTH = 120  # of the table in a pipe
LOSS_TOLERANCE = 1e-4  # relative, in every step
Runs = dict[Contender, list[Run]]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, print its table; 1 if a contender failed or trained on other numbers."""
    args = read_arguments(arguments)
    chosen = with_singles([c for c in CONTENDERS if args.only in f"{c.strategy} {c.name}"])
    with tempfile.TemporaryDirectory() as folder:
        runs, failures = race(chosen, Path(folder), args)
    failures |= dict.fromkeys(strangers(runs), "its losses are not those of the single process")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table(chosen, runs, failures))
    for contender, why in failures.items():
        console.print(f"[red]{contender.name}[/red]: {why}", soft_wrap=True, highlight=False)
    return 1 if failures else 0


def with_singles(contenders: list[Contender]) -> tuple[Contender, ...]:
    """Each model's single process in front of those that train it."""
    models = dict.fromkeys(c.model for c in contenders)
    return tuple(c for m in models for c in (SINGLES[m], *(c for c in contenders if c.model == m)))


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench steps", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="launches of each contender")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a launch")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--only", default="", metavar="TEXT", help="contenders whose strategy or name has this in it")
    parser.add_argument("--ours", default=[], action="append", metavar="NAME=DIR", help="a program compiled before")
    return parser.parse_args(arguments)


def race(chosen: tuple[Contender, ...], folder: Path, args: argparse.Namespace) -> tuple[Runs, dict[Contender, str]]:
    """All launches; a contender that fails once is left out from then on."""
    runs: Runs = {c: [] for c in chosen}
    failures = prepare(chosen, folder, dict(pair.split("=", 1) for pair in args.ours))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=args.rounds * len(chosen))
        for contender in turns(chosen, args.rounds):
            progress.update(bar, advance=1, description=contender.name)
            if contender in failures:
                continue
            try:
                runs[contender].append(launch(contender, folder / contender.name, args.steps, args.warmup))
            except Failed as failed:
                failures[contender] = str(failed)
    return runs, failures


def prepare(chosen: tuple[Contender, ...], folder: Path, compiled: dict[str, str]) -> dict[Contender, str]:
    """Give each contender a folder, with its program if it is a plan; those that do not compile, and why."""
    failures = {}
    for contender in chosen:
        (folder / contender.name).mkdir()
        program = folder / contender.name / "program"
        try:
            if contender.name in compiled:
                program.symlink_to(Path(compiled[contender.name]).resolve())
            elif isinstance(contender.program, Plan):
                compile_plan(contender.program, program, contender.model)
        except Failed as failed:
            failures[contender] = f"not compiled: {failed}"
    return failures


def turns(chosen: tuple[Contender, ...], rounds: int) -> Iterator[Contender]:
    for number in range(rounds):
        yield from chosen if number % 2 == 0 else reversed(chosen)


def strangers(runs: Runs) -> Iterator[Contender]:
    """The contenders whose losses are not those of the single process."""
    for contender, own in runs.items():
        single = runs[SINGLES[contender.model]]
        truth = single[0].losses if single else ()
        if any(not agree(run.losses, truth) for run in own):
            yield contender


def agree(losses: tuple[float, ...], truth: tuple[float, ...]) -> bool:
    pairs = zip(losses, truth, strict=False)
    return len(losses) == len(truth) and all(math.isclose(a, b, rel_tol=LOSS_TOLERANCE) for a, b in pairs)


def table(chosen: tuple[Contender, ...], runs: Runs, failures: dict[Contender, str]) -> Table:
    """One row for each contender, under its strategy; the ratios stand in the rows of ours."""
    result = Table(
        title="A training step of a small model, one thread a process",
        caption="MB: the fullest process, beyond what it began with; !: slower in every round, ?: in most",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    result.add_column("program", no_wrap=True)
    for heading in ("ms", "noise", "/ single", "/ hand", "/ library", "MB", "loss"):
        result.add_column(heading, justify="right", no_wrap=True)
    for strategy, members in itertools.groupby(chosen, lambda contender: contender.strategy):
        if strategy:
            result.add_row(f"[bold]{strategy}[/bold]")
        for contender in members:
            result.add_row(*row(contender, runs, failures))
        result.add_section()
    return result


def row(contender: Contender, runs: Runs, failures: dict[Contender, str]) -> tuple[str, ...]:
    name = f"{contender.name} ({contender.maker})"
    if contender in failures:
        return name, "[red]failed[/red]"
    times = [run.step_ms for run in runs[contender]]
    is_ours, single = contender.maker is Maker.OURS, SINGLES[contender.model]
    return (
        name,
        f"{statistics.median(times):.1f}",
        f"±{(max(times) - min(times)) / sum(times) * len(times) / 2:.0%}",
        f"{statistics.median(ratios(contender, single, runs)):.2f}" if single not in failures else "",
        *(verdict(contender, maker, runs, failures) if is_ours else "" for maker in (Maker.HAND, Maker.LIBRARY)),
        f"{statistics.median(run.peak_mb for run in runs[contender]):.0f}",
        f"{runs[contender][-1].losses[-1]:.4f}",
    )


def verdict(ours: Contender, maker: Maker, runs: Runs, failures: dict[Contender, str]) -> str:
    """The ratio to the rival of the same strategy, and whether it is beyond the limit in every round or in most."""
    rivals = [c for c in runs if c.strategy == ours.strategy and c.maker is maker and c not in failures]
    if not rivals:
        return "-"
    each = ratios(ours, rivals[0], runs)
    ratio = statistics.median(each)
    if ratio <= LIMITS[maker]:
        return f"[green]{ratio:.2f}[/green]"
    return f"[red]{ratio:.2f} ![/red]" if min(each) > LIMITS[maker] else f"[yellow]{ratio:.2f} ?[/yellow]"


def ratios(one: Contender, other: Contender, runs: Runs) -> list[float]:
    """The ratio of the step times in each round."""
    return [a.step_ms / b.step_ms for a, b in zip(runs[one], runs[other], strict=False)]


if __name__ == "__main__":
    raise SystemExit(main())
