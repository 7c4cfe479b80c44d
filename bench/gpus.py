"""`python -m bench gpus`: plans on this machine's GPUs, verified, and their memory and steps beside the simulator's.

Ranks share GPUs where there are too few. `--device cpu` tries the list without any.
"""

import argparse
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from bench.launch import ROOT, SSDSL

GPT, SWIN = "gpt:tiny", "swin:small,depths=2-2-1-1,batch=4"
REAL = "gpt:350m,batch=8"
LIMIT_S = 180


@dataclass(frozen=True)
class Case:
    """A plan with its settings, for a model."""

    plan: str
    model: str
    settings: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return [self.plan, "--model", self.model, *(word for s in self.settings for word in ("--set", s))]


VERIFIED = (
    Case("co_shard", GPT, ("D=1", "C=2")),
    Case("data_parallel", GPT),
    Case("zero", GPT, ("Z=3",)),
    Case("tensor_parallel", "bert:tiny"),
    Case("sequence_parallel", "llama:tiny"),
    Case("pipeline", GPT),
    Case("megatron", GPT),
    Case("interleaved", GPT),
    Case("v_shaped", GPT),
    Case("zero_bubble", GPT),
    Case("terapipe", GPT),
    Case("context_parallel", GPT),
    Case("context_parallel", GPT, ("U=2", "ends=1")),
    Case("experts", "moe_gpt:tiny"),
    Case("experts", "mixtral:tiny"),
    Case("spatial", "unet3d:tiny", ("D=1",)),
    Case("spatial_cosmoflow", "cosmoflow:tiny", ("B=2", "H=2", "D=1")),
    Case("tiles", "resnet:tiny", ("D=1", "T=2")),
    Case("splitbrain", "vgg:tiny"),
    Case("swin_co_shard", SWIN),
    Case("alphafold2_3f1b", "alphafold2:tiny", ("S=2", "M=2")),
    Case("mbart_interlaced", "mbart:tiny"),
    Case("argus_codebook", "argus:tiny"),
    Case("ga_planes_volume", "ga_planes:tiny"),
    Case("cross_mesh_gpt", GPT),
    Case("cross_mesh_u_transformer", "u_transformer:tiny", ("M=2",)),
    Case("data_parallel", "tests/models/derivatives.py:forces"),
)
TIMED = (
    Case("data_parallel", REAL, ("D=1",)),
    Case("megatron", REAL, ("D=1", "T=1", "S=1", "M=4")),
    Case("co_shard", REAL, ("D=1", "C=4")),
)


def main(arguments: list[str]) -> int:
    """Runs the cases and prints a row of each as it ends; 1 if one is not equal."""
    parser = argparse.ArgumentParser(prog="python -m bench gpus", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="cases that are verified at the same time")
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose name has this in it")
    parser.add_argument("--cluster", default="h200x8", metavar="NAME", help="with which steps are simulated")
    args = parser.parse_args(arguments)
    backend = ["--backend", args.backend] if args.device == "cuda" else []
    on = ["--device", args.device, *backend, "--timeout", "60"]
    console, wrong = Console(), 0
    chosen = [case for case in VERIFIED if args.only in case.plan]
    with ThreadPoolExecutor(args.at_once) as pool:
        for case, (code, said, seconds) in zip(chosen, pool.map(lambda c: call("verify", c, on), chosen), strict=True):
            wrong += code != 0
            verdict = said.strip().splitlines()[-1] if code == 0 else said.strip()
            name = " ".join((case.plan, case.model, *case.settings))
            console.print(f"{name}  {verdict}  {seconds:.0f} s", highlight=False, soft_wrap=True)
    if args.device == "cuda":
        console.print(table([case for case in TIMED if args.only in case.plan], on, args.cluster))
    return 1 if wrong else 0


def table(cases: list[Case], on: list[str], cluster: str) -> Table:
    """The peak and the step of each case in bfloat16, on a GPU and simulated."""
    found = Table(title=f"{REAL}, bf16, and {cluster} without fused kernels", box=box.SIMPLE_HEAD)
    for heading in ("plan", "GB", "simulated", "ms", "simulated"):
        found.add_column(heading, justify="left" if heading == "plan" else "right")
    half = ["--precision", "bf16", "--json"]
    for case in cases:
        _, ran, _ = call("run", case, [*on, *half, "--meta", "--steps", "8"])
        _, said, _ = call("simulate", case, [*half, "--cluster", f"{cluster},fuse=false"])
        try:
            rank, report = json.loads(ran)[0], json.loads(said)
        except ValueError:
            found.add_row(case.plan, (ran or said).strip(), "", "", "")
            continue
        step = sorted(rank["step_s"][2:])[len(rank["step_s"][2:]) // 2]
        sizes = rank["peak_bytes"] / 1e9, report["peak_bytes"] / 1e9
        found.add_row(case.plan, *(f"{x:.1f}" for x in (*sizes, step * 1e3, report["step_s"] * 1e3)))
    return found


def call(command: str, case: Case, options: list[str]) -> tuple[int, str, float]:
    """A command of ssdsl: its exit code, what it printed, and its seconds."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*SSDSL, command, *case.words, *options], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return 1, f"not done within {LIMIT_S} s", LIMIT_S
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr, time.perf_counter() - start
