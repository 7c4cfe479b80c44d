"""The most memory of real steps on this machine's CPU beside that of the simulator, in eager and in compiled kernels.

Real is what torch's allocator counts of the fullest process; simulated, of the fullest device of the cluster `laptop`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.contenders import Plan
from bench.launch import SSDSL, Failed, call

GPT = "gpt:tiny,batch=16"
MIXTURE = "mixtral:tiny,hidden=128,heads=4,ffn=256,experts=4,seq=64,batch=16,vocab=512,balance=0"
CASES = (
    ("data_parallel", (), GPT),
    ("tensor_parallel", ("T=2",), GPT),
    ("megatron", ("S=1", "T=2", "M=2", "R=1"), GPT),
    ("zero", ("Z=1",), GPT),
    ("zero", ("Z=2",), GPT),
    ("zero", ("Z=3",), GPT),
    ("megatron", ("S=2", "T=1"), GPT),
    ("interleaved", (), GPT),
    ("zero_bubble", (), GPT),
    ("co_shard", ("D=1", "C=2"), GPT),
    ("context_parallel", (), GPT),
    ("experts", (), MIXTURE),
)
STEPS = 3  # the second one is measured
CLOSE = 0.05  # real and simulated memory differ by less


def main(arguments: list[str] | None = None) -> int:
    """Prints a row of each plan and its kernels; 1 if one is not close to what is simulated, or fails."""
    parser = argparse.ArgumentParser(prog="python -m bench memory", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose name and settings have this in them")
    parser.add_argument("--kernels", choices=("eager", "compiled"), help="only these; both, if not said")
    args = parser.parse_args(arguments)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plan", "kernels", "real MB", "simulated MB", "ratio"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("plan", "kernels") else "right")
    far = 0
    for plan, model in cases(args.only, args.kernels):
        try:
            real, simulated = measured(plan, model) / 1e6, predicted(plan, model) / 1e6
        except Failed as failed:
            far += 1
            row = (str(failed), "", "")
        else:
            far += not abs(simulated / real - 1) < CLOSE
            row = (f"{real:.2f}", f"{simulated:.2f}", f"{simulated / real:.3f}")
        name = " ".join((plan.path, *plan.settings))
        table.add_row(name, plan.kernels, *row)
        print(name, plan.kernels, *row, file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 1 if far else 0


def cases(only: str, kernels: str | None) -> Iterator[tuple[Plan, str]]:
    """Yields each plan that was asked for, with each kind of kernels, and its model."""
    for path, settings, model in CASES:
        if only in " ".join((path, *settings)):
            for kind in ("eager", "compiled") if kernels is None else (kernels,):
                yield Plan(path, settings, kind), model


def measured(plan: Plan, model: str) -> int:
    """The most bytes of tensors of any rank, in a step after the first."""
    with tempfile.TemporaryDirectory() as folder:
        out = ("--profile", str(Path(folder) / "profile.json"), "--steps", str(STEPS), "--json")
        ranks = json.loads(call([*SSDSL, "run", *plan.words, "--model", model, *out]))
    return max(rank["tensor_bytes"] for rank in ranks)


def predicted(plan: Plan, model: str) -> int:
    """The most bytes of any device in a simulated step."""
    report = json.loads(call([*SSDSL, "simulate", *plan.words, "--model", model, "--cluster", "laptop", "--json"]))
    return int(report["peak_bytes"])
