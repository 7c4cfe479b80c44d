"""Real runs on this machine against the simulator, whose costs come from a profile of other plans.

`RECORDED` are the plans that a profile is recorded from, `PREDICTED` those that it predicts: none is in both. Each
round records a profile anew and runs every plan, some behind each that is recorded, so that what slows the machine for
a while slows both. A plan's time is the median of its rounds, each round's the mean of the middle half of its steps, as
in a profile. Memory is what tensors take at most, of the fullest process. The machine has to be quiet: how well every
other round predicts the rest says whether it was, as what runs do not repeat no simulation can predict.

    python -m bench foresight --only real --rounds 5
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import correlation, mean, median

from rich.console import Console
from rich.table import Table

from bench.foresight.row import Row
from ssdsl.run.profile.recorded_profile import middle_half

MODEL = "gpt:small,layers=8,batch=16"
ROUNDS, STEPS = 3, 14
WARM = 3  # the steps of a run before it, which fill memory and caches, do not count
MEAN_ERROR, CORRELATION = 0.02, 0.95
RECORDING_STEPS = 20  # of which some are timed operator by operator
HERE = Path(__file__).parent / "plans"
RECORDED = (
    "pipeline,S=2,M=2",
    f"{HERE / 'replicas.ssp'},D=2,M=2,Z=3",
    f"{HERE / 'replicas.ssp'},D=2,M=2,Z=2",
    "interleaved,S=2,V=4,M=8",
    "zero_bubble,S=2,M=4,H=2",
    "zero_bubble,S=2,M=8,H=2",
    f"{HERE / 'wide.ssp'},T=2,M=2",
    f"{HERE / 'wide.ssp'},T=2,M=4",
)
PREDICTED = {
    "data parallel x2": "data_parallel,D=2",
    "ZeRO-1 x2": "zero,D=2,Z=1",
    "ZeRO-2 x2": "zero,D=2,Z=2",
    "ZeRO-3 x2": "zero,D=2,Z=3",
    "GPipe x2, 4 micro-batches": "pipeline,S=2,M=4",
    "GPipe x2, 8 micro-batches": "pipeline,S=2,M=8",
    "1F1B x2, 2 micro-batches": "megatron,S=2,T=1,M=2",
    "1F1B x2, 4 micro-batches": "megatron,S=2,T=1,M=4",
    "1F1B x2, 8 micro-batches": "megatron,S=2,T=1,M=8",
    "interleaved x2, 2 micro-batches": "interleaved,S=2,V=2,M=2",
    "interleaved x2, 4 micro-batches": "interleaved,S=2,V=2,M=4",
    "interleaved x2, 8 micro-batches": "interleaved,S=2,V=2,M=8",
    "ZB-H1 x2, 4 micro-batches": "zero_bubble,S=2,M=4,H=1",
    "ZB-H1 x2, 8 micro-batches": "zero_bubble,S=2,M=8,H=1",
    "tensor parallel x2, 2 micro-batches": "megatron,S=1,T=2,M=2",
    "tensor parallel x2, 4 micro-batches": "megatron,S=1,T=2,M=4",
}


@dataclass
class Rounds:
    """What the rounds found of a plan: its step in seconds, measured and predicted, and its memory in bytes."""

    steps_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)
    peak: int = 0
    predicted_peak: int = 0

    @property
    def spread(self) -> float:
        """By how much the slowest round differs from the fastest."""
        return max(self.steps_s) / min(self.steps_s) - 1


def rows(model: str = MODEL, rounds: int = ROUNDS, steps: int = STEPS) -> Iterator[Row]:
    """The step of each plan in ms, and its memory in MB."""
    yield from rows_of(measure(model, rounds, steps))


def rows_of(found: dict[str, Rounds]) -> Iterator[Row]:
    """The same of rounds that were run."""
    for name, one in found.items():
        yield Row(f"{name}: step", 1e3 * median(one.steps_s), 1e3 * median(one.predicted_s), "ms")
    for name, one in found.items():
        yield Row(f"{name}: memory", one.peak / 1e6, one.predicted_peak / 1e6, "MB")


def measure(model: str = MODEL, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Rounds]:
    """What the rounds found, by the plan's name."""
    found = {name: Rounds() for name in PREDICTED}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            _round(found, model, steps, Path(folder) / "profile.json")
        for name, one in found.items():
            times = f"{1e3 * one.steps_s[-1]:.1f} ms, predicted {1e3 * one.predicted_s[-1]:.1f} ms"
            _say(f"round {number + 1} of {rounds}: {name}: {times}")
    return found


def _round(found: dict[str, Rounds], model: str, steps: int, profile: Path) -> None:
    """A profile and a run of every plan, some behind each plan that is recorded; then the predictions."""
    for at, recorded in enumerate(RECORDED):
        _ssdsl("profile", recorded, "--model", model, "--steps", str(RECORDING_STEPS), "--out", str(profile))
        for name in list(PREDICTED)[at :: len(RECORDED)]:
            _run(found[name], _words(name, model), steps)
    for name, one in found.items():
        report = json.loads(_ssdsl("simulate", *_words(name, model), "--costs", str(profile)))
        one.predicted_s.append(report["step_s"])
        one.predicted_peak = report["peak_bytes"]


def _words(name: str, model: str) -> list[str]:
    plan, *settings = PREDICTED[name].split(",")
    return [plan, "--model", model, *(word for one in settings for word in ("--set", one)), "--json"]


def _run(found: Rounds, words: list[str], steps: int) -> None:
    """The first round also measures memory, in a run of its own."""
    ranks = json.loads(_ssdsl("run", *words, "--steps", str(steps)))
    took = dict(enumerate(max(times) for times in zip(*(r["step_s"][WARM:] for r in ranks), strict=True)))
    found.steps_s.append(mean(took[n] for n in middle_half(took)))
    if found.peak:
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = json.loads(_ssdsl("run", *words, "--steps", "3", "--profile", str(Path(folder) / "memory.json")))
    found.peak = max(r["tensor_bytes"] for r in ranks)


def _ssdsl(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ssdsl", *words], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- as a table --------------------------------------------------------------------------------------------------------


def show(console: Console, model: str = MODEL, rounds: int = ROUNDS, steps: int = STEPS) -> bool:
    """Prints every row with its error, the mean error and the rank correlation, the rounds and their noise; whether the
    bars are kept."""
    found = measure(model, rounds, steps)
    kept = True
    for unit in ("ms", "MB"):
        chosen = [row for row in rows_of(found) if row.unit == unit]
        console.print(_table(chosen))
        kept &= _mean_error(chosen) <= MEAN_ERROR and (unit != "ms" or _ranks(chosen) >= CORRELATION)
    spread = median(one.spread for one in found.values())
    console.print(f"{rounds} rounds of {steps} steps; rounds differ by {spread:.1%} in the median")
    if rounds > 1:
        again = _repeated(found)
        known = f"{_mean_error(again):.1%}, correlation {_ranks(again):.3f}"
        console.print(f"every other round predicts the rest to {known}")
    bars = f"mean errors of {MEAN_ERROR:.0%}, correlation of {CORRELATION}"
    console.print(f"bars: {bars}: {'kept' if kept else 'NOT KEPT'}\n")
    return kept


def _repeated(found: dict[str, Rounds]) -> list[Row]:
    """What half of the rounds measured, as a prediction of the other half."""
    halves = ((name, [1e3 * median(one.steps_s[at::2]) for at in (0, 1)]) for name, one in found.items())
    return [Row(name, first, second, "ms") for name, (first, second) in halves]


def _mean_error(found: list[Row]) -> float:
    return mean(abs(row.error) for row in found)


def _ranks(found: list[Row]) -> float:
    """Spearman's correlation of measured and predicted numbers."""
    return correlation(_places([row.measured for row in found]), _places([row.predicted for row in found]))


def _places(values: list[float]) -> list[float]:
    """Each value's place in the sorted list, from 1; equal ones share the mean of theirs."""
    return [sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2 for value in values]


def _table(found: list[Row]) -> Table:
    unit = found[0].unit
    table = Table("row", f"measured {unit}", f"predicted {unit}", "error", title="costs from a profile of other plans")
    for row in found:
        table.add_row(row.name, f"{row.measured:.1f}", f"{row.predicted:.1f}", f"{row.error:+.1%}")
    table.add_section()
    table.add_row("mean of errors", "", "", f"{_mean_error(found):.1%}")
    table.add_row("rank correlation", "", f"{_ranks(found):.3f}", "")
    return table
