"""`python -m bench gpus`: plans on this machine's GPUs, verified, and their memory and steps beside the simulator's.

Ranks share GPUs where there are too few. `--device cpu` tries the list without any.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor

from rich import box
from rich.console import Console
from rich.table import Table

from bench.contenders import Plan
from bench.launch import SSDSL, Failed, call

GPT, SWIN = "gpt:tiny", "swin:small,depths=2-2-1-1,batch=4"
REAL = "gpt:350m,batch=8"

VERIFIED = (
    (Plan("co_shard", ("D=1", "C=2")), GPT),
    (Plan("data_parallel"), GPT),
    (Plan("zero", ("Z=3",)), GPT),
    (Plan("tensor_parallel"), "bert:tiny"),
    (Plan("sequence_parallel"), "llama:tiny"),
    (Plan("pipeline"), GPT),
    (Plan("megatron"), GPT),
    (Plan("interleaved"), GPT),
    (Plan("v_shaped"), GPT),
    (Plan("zero_bubble"), GPT),
    (Plan("terapipe"), GPT),
    (Plan("context_parallel"), GPT),
    (Plan("context_parallel", ("U=2", "ends=1")), GPT),
    (Plan("experts"), "moe_gpt:tiny"),
    (Plan("experts"), "mixtral:tiny"),
    (Plan("spatial", ("D=1",)), "unet3d:tiny"),
    (Plan("spatial_cosmoflow", ("B=2", "H=2", "D=1")), "cosmoflow:tiny"),
    (Plan("tiles", ("D=1", "T=2")), "resnet:tiny"),
    (Plan("splitbrain"), "vgg:tiny"),
    (Plan("swin_co_shard"), SWIN),
    (Plan("alphafold2_3f1b", ("S=2", "M=2")), "alphafold2:tiny"),
    (Plan("mbart_interlaced"), "mbart:tiny"),
    (Plan("argus_codebook"), "argus:tiny"),
    (Plan("ga_planes_volume"), "ga_planes:tiny"),
    (Plan("cross_mesh_gpt"), GPT),
    (Plan("cross_mesh_u_transformer", ("M=2",)), "u_transformer:tiny"),
    (Plan("data_parallel"), "tests/models/derivatives.py:forces"),
)
TIMED = (
    Plan("data_parallel", ("D=1",)),
    Plan("megatron", ("D=1", "T=1", "S=1", "M=4")),
    Plan("co_shard", ("D=1", "C=4")),
)


def main(arguments: list[str]) -> int:
    """Runs the cases and prints a row of each as it ends; 1 if one is not equal."""
    parser = argparse.ArgumentParser(prog="python -m bench gpus", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="cases that share the GPUs")
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose name has this in it")
    parser.add_argument("--cluster", default="h200x8", metavar="NAME", help="with which steps are simulated")
    args = parser.parse_args(arguments)
    backend = ["--backend", args.backend] if args.device == "cuda" else []
    on = ["--device", args.device, *backend, "--timeout", "60"]
    console, wrong = Console(), 0
    chosen = [(plan, model) for plan, model in VERIFIED if args.only in plan.path]
    with ThreadPoolExecutor(args.at_once) as pool:
        for (plan, model), (is_equal, said) in zip(chosen, pool.map(lambda c: verified(*c, on), chosen), strict=True):
            wrong += not is_equal
            console.print(f"{' '.join((plan.path, model, *plan.settings))}  {said}", highlight=False, soft_wrap=True)
    if args.device == "cuda":
        console.print(table([plan for plan in TIMED if args.only in plan.path], on, args.cluster))
    return 1 if wrong else 0


def table(plans: list[Plan], on: list[str], cluster: str) -> Table:
    """The peak and the step of each plan in bfloat16, on a GPU and simulated."""
    found = Table(title=f"{REAL}, bf16, and {cluster} without fused kernels", box=box.SIMPLE_HEAD)
    for heading in ("plan", "GB", "simulated", "ms", "simulated"):
        found.add_column(heading, justify="left" if heading == "plan" else "right")
    half = ["--precision", "bf16", "--json"]
    for plan in plans:
        try:
            ran = call([*SSDSL, "run", *plan.words, "--model", REAL, *on, *half, "--meta", "--steps", "8"])
            said = call([*SSDSL, "simulate", *plan.words, "--model", REAL, *half, "--cluster", f"{cluster},fuse=false"])
        except Failed as failed:
            found.add_row(plan.path, str(failed), "", "", "")
            continue
        rank, report = json.loads(ran)[0], json.loads(said)
        step_s = statistics.median(rank["step_s"][2:])
        sizes = rank["peak_bytes"] / 1e9, report["peak_bytes"] / 1e9
        found.add_row(plan.path, *(f"{x:.1f}" for x in (*sizes, step_s * 1e3, report["step_s"] * 1e3)))
    return found


def verified(plan: Plan, model: str, on: list[str]) -> tuple[bool, str]:
    """Whether a plan is equal to one device, and the line that says so or why not."""
    try:
        return True, call([*SSDSL, "verify", *plan.words, "--model", model, *on]).strip().splitlines()[-1]
    except Failed as failed:
        return False, str(failed)
