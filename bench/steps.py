"""Step times of compiled plans beside hand-written programs and libraries, which all train the same small model.

A round launches every contender once, in turn, and every other round turns the order around: a machine that slows down
slows all of them. Times are medians and minima over rounds, on the clock and of the slowest process's processor; a
ratio is the median of the ratios within each round. Kernels are compiled in the first round, and loaded in the others.
Each one's losses are compared with the single process, step by step: a contender that trains on other numbers failed.
"""

import argparse
import itertools
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.contenders import CONTENDERS, LINKED, MUON, SINGLES, Contender, Maker, Plan
from bench.launch import Failed, Run, compile_plan, launch

WIDTH = 160  # of the table in a pipe
LOSS_TOLERANCE = 1e-4  # relative, in every step
COMPILED_TOLERANCE = 0.01  # of compiled kernels and Muon's bfloat16, which round otherwise; more in each step
DRAWN_TOLERANCE = 0.05  # of contenders that draw random numbers, each others
GAIN = 0.9  # of that which torch.compile gives the module
SECOND_START_S, OF_A_RUN_S = 3.0, 0.5  # of processor time
Runs = dict[Contender, list[Run]]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, print its table; 1 if a contender failed or trained on other numbers."""
    args = read_arguments(arguments)
    contenders = CONTENDERS if args.link is None else LINKED
    chosen = with_singles([c for c in contenders if args.only in f"{c.strategy} {c.name}"])
    with tempfile.TemporaryDirectory() as folder:
        runs, failures = race(chosen, Path(folder), args)
    if args.sleep is None:
        failures |= dict.fromkeys(strangers(runs), "its losses are not those of the single process")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table(chosen, runs, failures, args.link))
    for line in gains(chosen, runs, failures):
        console.print(line, soft_wrap=True, highlight=False)
    for contender, why in failures.items():
        console.print(f"[red]{contender.name}[/red]: {why}", soft_wrap=True, highlight=False)
    return 1 if failures else 0


def with_singles(contenders: list[Contender]) -> tuple[Contender, ...]:
    """Each model's single process in front of those that train it."""
    models = dict.fromkeys(c.model for c in contenders)
    return tuple(c for m in models for c in (SINGLES[m], *(c for c in contenders if c.model == m and c != SINGLES[m])))


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench steps", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="launches of each contender")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a launch")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--only", default="", metavar="TEXT", help="contenders whose strategy or name has this in it")
    parser.add_argument("--ours", default=[], action="append", metavar="FOLDER=DIR", help="a program compiled before")
    parser.add_argument(
        "--link", type=speed, metavar="SPEED", help="over an emulated network, as 1Gb/s, or ssdsl's --link"
    )
    parser.add_argument("--sleep", type=float, metavar="GFLOPS", help="products sleep; losses are not compared")
    return parser.parse_args(arguments)


def speed(text: str) -> str:
    """A speed as `--link` of ssdsl takes it; a rate alone is the bandwidth."""
    return text if "=" in text else f"bandwidth={text}"


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
                runs[contender].append(
                    launch(contender, folder / key(contender), args.steps, args.warmup, args.link, args.sleep)
                )
            except Failed as failed:
                failures[contender] = str(failed)
    return runs, failures


def prepare(chosen: tuple[Contender, ...], folder: Path, compiled: dict[str, str]) -> dict[Contender, str]:
    """Give each contender a folder, with its program if it is a plan; those that do not compile, and why."""
    failures = {}
    for contender in chosen:
        (folder / key(contender)).mkdir()
        program = folder / key(contender) / "program"
        try:
            if key(contender) in compiled:
                program.symlink_to(Path(compiled[key(contender)]).resolve())
            elif isinstance(contender.program, Plan):
                compile_plan(contender.program, program, contender.model)
        except Failed as failed:
            failures[contender] = f"not compiled: {failed}"
    return failures


def key(contender: Contender) -> str:
    """The name of a contender's folder."""
    return re.sub(r"\W+", "_", f"{contender.strategy} {contender.name}")


def turns(chosen: tuple[Contender, ...], rounds: int) -> Iterator[Contender]:
    for number in range(rounds):
        yield from chosen if number % 2 == 0 else reversed(chosen)


def strangers(runs: Runs) -> Iterator[Contender]:
    """The contenders whose losses are not those of the single process."""
    for contender, own in runs.items():
        single = runs[SINGLES[contender.model]]
        truth = single[0].losses if single else ()
        if any(not agree(run.losses, truth, tolerance(contender)) for run in own):
            yield contender


def tolerance(contender: Contender) -> float:
    """The relative difference of losses that is allowed."""
    if contender.draws:
        return DRAWN_TOLERANCE
    if contender.model == MUON:
        return COMPILED_TOLERANCE
    return COMPILED_TOLERANCE if contender.strategy.endswith("compiled") else LOSS_TOLERANCE


def agree(losses: tuple[float, ...], truth: tuple[float, ...], tolerance: float) -> bool:
    pairs = zip(losses, truth, strict=False)
    return len(losses) == len(truth) and all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def table(chosen: tuple[Contender, ...], runs: Runs, failures: dict[Contender, str], link: str | None = None) -> Table:
    """One row for each contender, under its strategy; the ratios stand in the rows of ours."""
    result = Table(
        title="A training step of a small model, one thread a process" + (f", {link}" if link is not None else ""),
        caption="cpu: processor time; first, again: seconds of the first step, without and with kernels of an earlier"
        " launch; MB: the fullest process, beyond what it began with; !: slower than the limit in every round; "
        "~: the limit is within the noise of the rounds",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    result.add_column("program")
    for heading in HEADINGS:
        result.add_column(heading, justify="right", no_wrap=True)
    for strategy, members in itertools.groupby(chosen, lambda contender: contender.strategy):
        result.add_row(f"[bold]{strategy.removesuffix(', compiled')}[/bold]")
        for contender in members:
            result.add_row(*row(contender, runs, failures))
        result.add_section()
    return result


HEADINGS = ("ms", "least", "cpu", "least", "noise", "/ hand", "cpu", "/ torch", "cpu", "first", "again", "MB", "loss")


def row(contender: Contender, runs: Runs, failures: dict[Contender, str]) -> tuple[str, ...]:
    compiled = ", compiled" if contender.strategy.endswith("compiled") and "compile" not in contender.name else ""
    name = f"  {contender.name}{compiled} ({contender.maker})"
    if contender in failures:
        return name, "[red]failed[/red]"
    own = runs[contender]
    clock, processor = [run.step_ms for run in own], [run.processor_ms for run in own]
    rivals = [rival(contender, maker, runs, failures) for maker in (Maker.HAND, Maker.LIBRARY)]
    again = statistics.median(run.first_s for run in own[1:]) if own[1:] else math.nan
    return (
        name,
        f"{statistics.median(clock):.1f}",
        f"{min(clock):.1f}",
        f"{statistics.median(processor):.1f}",
        f"{min(processor):.1f}",
        f"±{(max(clock) - min(clock)) / sum(clock) * len(clock) / 2:.0%}",
        *(text for other in rivals for text in compared(contender, other, runs)),
        f"{own[0].first_s:.1f}",
        f"{again:.1f}",
        f"{statistics.median(run.peak_mb for run in own):.0f}",
        f"{own[-1].losses[-1]:.4f}",
    )


def rival(ours: Contender, maker: Maker, runs: Runs, failures: dict[Contender, str]) -> Contender | None:
    """Whom a contender of ours is compared with, among those who ran."""
    others = (c for c in runs if c.strategy == ours.strategy and c.maker is maker and c not in failures)
    return next(others, None) if ours.maker is Maker.OURS else None


def compared(ours: Contender, other: Contender | None, runs: Runs) -> tuple[str, str]:
    """The ratios of the steps and of their processor time, if there is one to compare with."""
    if other is None:
        return "", ""
    return verdict(ours, other, runs), f"{statistics.median(ratios(ours, other, runs, cpu)):.2f}"


def verdict(ours: Contender, other: Contender, runs: Runs) -> str:
    """The ratio of the steps, and whether it is beyond the limit in every round, or the limit in their noise."""
    limit = ours.hand_limit if other.maker is Maker.HAND else ours.limit
    each = ratios(ours, other, runs)
    ratio = statistics.median(each)
    if min(each) > limit:
        return f"[red]{ratio:.2f} ![/red]"
    colour = "green" if ratio <= limit else "yellow"
    return f"[{colour}]{ratio:.2f}{' ~' if max(each) > limit else ''}[/{colour}]"


def clock(run: Run) -> float:
    return run.step_ms


def cpu(run: Run) -> float:
    return run.processor_ms


def ratios(one: Contender, other: Contender, runs: Runs, of: Callable[[Run], float] = clock) -> list[float]:
    """The ratio of the step times in each round."""
    return [of(a) / of(b) for a, b in zip(runs[one], runs[other], strict=False)]


def gains(chosen: tuple[Contender, ...], runs: Runs, failures: dict[Contender, str]) -> Iterator[str]:
    """What compiled kernels make of a model alone, ours beside the module's, and what a second start of them takes."""
    for ours in chosen:
        if not isinstance(ours.program, Plan) or ours.program.kernels == "eager" or ours.processes > 1:
            continue
        eager = next(
            c for c in chosen if c.model == ours.model and c.maker is Maker.OURS and c.strategy in ours.strategy
        )
        module, compiled = SINGLES[ours.model], rival(ours, Maker.LIBRARY, runs, failures)
        if compiled is None or not failures.keys().isdisjoint((ours, eager, module)):
            continue
        own, theirs = (statistics.median(ratios(a, b, runs)) for a, b in ((eager, ours), (module, compiled)))
        yield (
            f"{ours.model}: compiled kernels make the step {own:.2f} times as fast, the module's {theirs:.2f} times: "
            f"{own / theirs:.2f} of that (at least {GAIN})"
        )
        again = [[run.started_s for run in runs[c][1:]] for c in (ours, eager, compiled, module)]
        if all(again):
            least = [min(times) for times in again]
            count = runs[ours][0].compiled
            yield (
                f"  a second start takes {least[0] - least[1]:.1f} s of processor time more than eager, "
                f"the module's {least[2] - least[3]:.1f} s; {count} runs: "
                f"at most {SECOND_START_S + OF_A_RUN_S * count:.1f} s"
            )


if __name__ == "__main__":
    raise SystemExit(main())
