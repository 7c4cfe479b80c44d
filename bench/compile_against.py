"""`python -m bench compile --against REV`: compile times of this tree beside a revision's, in fresh processes in turn.

Each row has a bar: the ratio of the two, or a figure of its own, that the compiler is to reach. Times are those of the
processor.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from bench.compile_once import PASSES, Job, Times
from bench.same.checkouts import ROOT, checkout
from ssdsl.record import replace
from ssdsl.show.view import Column, ColumnKind, View, table

ONCE = ROOT / "bench" / "compile_once.py"
EXAMPLES = Path("examples")  # of each checkout its own: a plan may say what an earlier language cannot
WIDTH = 130  # of the table
SAID = ("capture", *PASSES, "simulate")
Figure = Callable[[Sequence[Times]], float]


def all_of_it(each: Sequence[Times]) -> float:
    """Seconds from the plan's text to the program's files and a simulated step."""
    (times,) = each
    return times["total"] + times["simulate"]


def per_operator(each: Sequence[Times]) -> float:
    """Seconds for one operator more, from text to program: the slope between a smaller model and a larger one."""
    small, large = each
    more_s = sum(large[name] - small[name] for name in ("plan", "lower"))
    return more_s / (large["operators"] - small["operators"])


def per_action(each: Sequence[Times]) -> float:
    """Seconds for one action more, with the proof: the slope between fewer micro-batches and more, all else loaded."""
    (times,) = each
    more_s = sum(times[f"more_{name}"] - times[f"again_{name}"] for name in ("plan", "lower", "prove"))
    return more_s / (times["more_actions"] - times["again_actions"])


def of_candidate(each: Sequence[Times]) -> float:
    """Seconds from what was changed in a plan to its simulated step, without a proof."""
    (times,) = each
    return times["candidate"]


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured, and what is to be reached: a ratio, seconds of its own, or MB of memory."""

    name: str
    jobs: tuple[Job, ...]
    ratio: float | None = None
    figure: Figure = all_of_it
    most_s: float | None = None
    most_mb: float | None = None

    @property
    def bar(self) -> str:
        """In words.

        >>> Row("", (), ratio=0.2, most_mb=1000).bar
        '0.20, 1 GB'
        >>> Row("", (), most_s=50e-6).bar
        '50 us'
        """
        ratio = [] if self.ratio is None else [f"{self.ratio:.2f}"]
        most = self.most_s or 0
        time = [] if self.most_s is None else [f"{most:g} s" if most >= 0.01 else f"{most * 1e6:.0f} us"]
        return ", ".join([*ratio, *time, *([] if self.most_mb is None else [f"{self.most_mb / 1e3:g} GB"])])

    def is_reached(self, old_s: float, new_s: float, new_mb: float) -> bool:
        return (
            (self.ratio is None or new_s <= self.ratio * old_s)
            and (self.most_s is None or new_s <= self.most_s)
            and (self.most_mb is None or new_mb <= self.most_mb)
        )


def _megatron(model: str, dp: int, tp: int, pp: int, micro: int, cluster: str, more: int | None = None) -> Job:
    """The plan of data, tensor and pipeline parallelism."""
    settings = {"D": dp, "T": tp, "S": pp, "M": micro}
    other = None if more is None else settings | {"M": more}
    return Job(model, str(EXAMPLES / "megatron.ssp"), settings, cluster, other)


def _of_paper(plan: str, model: str, **settings: int) -> Job:
    return Job(model, str(EXAMPLES / "papers" / f"{plan}.ssp"), settings)


def _candidate(
    what: str, most_s: float, more: dict[str, int] | None = None, edit: tuple[str, str] | None = None
) -> Row:
    """A plan like the one before."""
    job = _megatron("gpt:13b,batch=512,dtype=bf16", 2, 8, 4, 16, "a100x64")
    other = None if more is None else job.settings | more
    return Row(
        f"next candidate: {what}", (replace(job, more=other, candidate=True, edit=edit),), None, of_candidate, most_s
    )


def _gpt(layers: int) -> Job:
    return _megatron(f"gpt:1.3b,layers={layers},batch=512,dtype=bf16", 8, 8, 8, 16, "a100x1024")


GPT_3 = "gpt:175b,batch=1024,dtype=bf16"
LLAMA = "llama:405b,batch=2048,dtype=bf16"
LARGEST = "gpt:1t,batch=8192,dtype=bf16"
T5 = "hf:t5,num_layers=24,d_model=1024,d_kv=128,d_ff=65536,num_heads=128,batch=256,seq=512,dtype=bf16"
MIXTRAL = "mixtral:8x7b,dtype=bf16"
RESNET = "resnet:50,depths=3-8-36-3"
UNET = f"{ROOT / 'bench' / 'unet.py'}:unet"
ROWS = (
    Row("24 layers, 512 devices", (_gpt(24),), ratio=0.30),
    Row("GPT-3, 1024 devices, 128 micro-batches", (_megatron(GPT_3, 8, 8, 16, 128, "a100x1024"),), ratio=0.18),
    Row("405B, 16384 devices", (_megatron(LLAMA, 128, 8, 16, 16, "h100x16384"),), ratio=0.35),
    *(
        Row(
            f"1T, 128 stages, {micro} micro-batches, 16384 devices",
            (_megatron(LARGEST, 16, 8, 128, micro, "h100x16384"),),
            ratio=0.20,
            most_mb=1000,
        )
        for micro in (256, 512)
    ),
    Row("an operator more, 24 to 384 layers", (_gpt(24), _gpt(384)), figure=per_operator, most_s=50e-6),
    Row(
        "an action more, 64 to 256 micro-batches",
        (_megatron("gpt:1.3b,layers=8,batch=2048,dtype=bf16", 8, 8, 8, 64, "a100x1024", more=256),),
        figure=per_action,
        most_s=20e-6,
    ),
    _candidate("a width", 0.08, more={"T": 4, "D": 4}),
    _candidate("a cut", 0.08, edit=("split model by vocab into tp where possible", "")),
    _candidate("a clock", 0.03, edit=("one_f_one_b", "gpipe")),
    _candidate("a comment", 0.02, edit=("\n\n", "\n\n# as before\n")),
    Row("Mixtral 8x7B", (Job(MIXTRAL, str(EXAMPLES / "experts.ssp"), {"E": 8, "T": 4, "D": 4}),), ratio=0.18),
    Row("T5-11B", (_of_paper("t5_megatron", T5, D=8, T=8, S=4, M=16),), ratio=0.18),
    Row("Swin 1.8B", (_of_paper("swin_megatron", "swin:1.8b,dtype=bf16", D=8, T=8, S=4, M=16),), ratio=0.18),
    Row("ResNet-152", (Job(RESNET, str(EXAMPLES / "data_parallel.ssp"), {"D": 64}),), ratio=1.0),
    Row("U-Net of a user's file", (Job(UNET, str(EXAMPLES / "tiles.ssp"), {"D": 8, "T": 4}),), ratio=1.0),
)


def against(options: argparse.Namespace) -> int:
    """Measure the rows and print the table; 1 if one does not compile."""
    rows = [row for row in ROWS if all(word in row.name for word in options.only or ())]
    if not rows:
        raise SystemExit(f"no row has {' and '.join(options.only)}; the rows are {', '.join(r.name for r in ROWS)}")
    talk, console = Console(stderr=True), Console(width=WIDTH)
    with checkout(options.against) as old:
        for root in (old, ROOT):
            compileall.compile_dir(root / "ssdsl", quiet=1)  # so that no process waits for Python's own compiler
        tried = [(row, measured(row, (old, ROOT), options.rounds, talk)) for row in rows]
    found = [(row, times) for row, times in tried if times is not None]
    console.print(table(view(found, options.against), console.width))
    return int(len(found) < len(rows))


Measured = tuple[list[list[Times]], list[list[Times]]]


def measured(row: Row, roots: tuple[Path, Path], rounds: int, talk: Console) -> Measured | None:
    """The times of each job in each round, of both checkouts; they take turns, and so does who begins."""
    found: Measured = ([], [])
    for number in range(rounds):
        for which in ((0, 1), (1, 0))[number % 2]:
            try:
                times = [measure_apart(roots[which], job) for job in row.jobs]
            except subprocess.CalledProcessError as error:
                reason = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[-1]
                talk.print(f"{row.name} does not compile in {roots[which]}: {reason}", style="red", highlight=False)
                return None
            found[which].append(times)
            talk.print(f"{('before', 'after')[which]}  {row.name}  {said(row, times)}", highlight=False)
    return found


def said(row: Row, each: list[Times]) -> str:
    figure = row.figure(each)
    shown = f"{figure:.3g} s" if figure >= 0.01 else f"{figure * 1e6:.3g} us"
    return f"{shown}: {', '.join(f'{name} {each[-1][name]:.3g}' for name in SAID)}"


def measure_apart(root: Path, job: Job) -> Times:
    """The measurement of a job in a fresh process of one thread."""
    command = [sys.executable, str(ONCE), str(root), json.dumps(asdict(job))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def view(found: list[tuple[Row, Measured]], revision: str) -> View:
    """A row for each, of medians."""
    columns = (
        Column("what", fold=True, style="bold"),
        Column("before", ColumnKind.SECONDS),
        Column("after", ColumnKind.SECONDS),
        Column("ratio"),
        Column("peak before", ColumnKind.BYTES),
        Column("peak after", ColumnKind.BYTES),
        Column("bar"),
        Column("reached"),
    )
    return View(f"compile times of this tree against {revision}", columns, tuple(_rows(found)), NOTES if found else ())


NOTES = (
    "seconds from the plan's text to the program's files and a simulated step; of an operator, to the program",
    "of an action, to the proof; of a candidate, from what is changed to the step",
)


def _rows(found: list[tuple[Row, Measured]]) -> Iterator[tuple[str | float | int, ...]]:
    for row, (old, new) in found:
        old_s, new_s = (statistics.median(map(row.figure, each)) for each in (old, new))
        old_mb, new_mb = (statistics.median(max(t["peak_mb"] for t in times) for times in each) for each in (old, new))
        reached = "yes" if row.is_reached(old_s, new_s, new_mb) else "no"
        yield row.name, old_s, new_s, f"{new_s / old_s:.2f}", int(1e6 * old_mb), int(1e6 * new_mb), row.bar, reached
