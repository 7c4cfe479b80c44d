"""`python -m bench gpus`: plans on this machine's GPUs, verified, and their memory and steps beside the simulator's.

Ranks share GPUs where there are too few. `--device cpu` tries the list without any.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rich.console import Console

from bench.contenders import Plan
from bench.launch import SSDSL, Failed, call

GPT, SWIN, REAL = "gpt:tiny", "swin:small,depths=2-2-1-1,batch=4", "gpt:350m,batch=8"
LLAMA = (
    "hf:llama,hidden_size=2048,intermediate_size=5632,num_hidden_layers=12,num_attention_heads=16,vocab_size=32000,"
    "seq=2048,batch=4"
)

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
ONE = Plan("data_parallel", ("D=1",))
TIMED = (
    (ONE, REAL),
    (Plan("megatron", ("D=1", "T=1", "S=1", "M=4")), REAL),
    (Plan("co_shard", ("D=1", "C=4")), REAL),
    (ONE, LLAMA),
    (ONE, "bert:24x1024,batch=64"),
    (ONE, "vit:huge-32,batch=64"),
    (ONE, "swin:1.8b,batch=1,depths=2-2-6-2"),
    (ONE, "moe_gpt:380m,batch=16"),
    (ONE, "t5:3.9b,batch=4,layers=8"),
    (ONE, "mbart:2b,batch=4"),
    (ONE, "resnet:50"),
    (ONE, "u_transformer:470m,batch=16"),
    (ONE, "unet3d:128,batch=2"),
)
HALF = ("--precision", "bf16", "--optimizer", "adamw", "--json")
COMPARED = (  # with the untouched module, eager and compiled
    (ONE, REAL),
    (replace(ONE, kernels="compiled"), REAL),
    (Plan("co_shard", ("D=1", "C=4")), REAL),
    (Plan("co_shard", ("D=1", "C=4"), "compiled"), REAL),
)


def main(arguments: list[str]) -> int:
    """Runs the cases and prints a row of each as it ends; 1 if one is not equal."""
    parser = argparse.ArgumentParser(prog="python -m bench gpus", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="verified|timed|compared", help="one of the lists; all, if not said")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="cases that share the GPUs")
    parser.add_argument("--only", default="", metavar="TEXT", help="plans whose name has this in it")
    parser.add_argument("--cluster", default="h200x8", metavar="NAME", help="with which steps are simulated")
    args = parser.parse_args(arguments)
    backend = ["--backend", args.backend] if args.device == "cuda" else []
    on = ["--device", args.device, *backend, "--timeout", "60"]
    console = Console(highlight=False, soft_wrap=True)
    is_gpu = args.device == "cuda"
    lists = {"verified": VERIFIED, "timed": TIMED if is_gpu else (), "compared": COMPARED if is_gpu else ()}
    what = args.what or [*lists]
    if unknown := [word for word in what if word not in lists]:
        parser.error(f"there is no list {unknown[0]}: choose one of {', '.join(lists)}")
    checked, timed, compared = (
        [case for case in lists[key] if key in what and args.only in name(case)] for key in lists
    )
    wrong = 0
    with ThreadPoolExecutor(args.at_once) as pool:
        answers = pool.map(lambda case: verified(*case, on), checked)
        for case, (is_equal, said) in zip(checked, answers, strict=True):
            wrong += not is_equal
            console.print(f"{name(case)}  {said}")
        answers = pool.map(lambda case: simulated(*case, args.cluster), timed)
        for case, said in zip(timed, answers, strict=True):
            console.print(f"{name(case)}  {trained(*case, on)}; simulated {said}")
    for line in beside_the_module(compared, on, args.cluster):
        console.print(line)
    return 1 if wrong else 0


def beside_the_module(cases: Sequence[tuple[Plan, str]], on: list[str], cluster: str) -> Iterator[str]:
    """The steps of plans on one GPU beside those of the untouched module in the same kernels, with the share of the
    GPU's peak."""
    modules: dict[tuple[str, str], float] = {}
    for case in cases:
        plan, model = case
        alone = modules.get((model, plan.kernels))
        try:
            if alone is None:
                compiled = ["--compiled"] if plan.kernels == "compiled" else []
                ran = call([sys.executable, "-m", "bench.gpu_module", "--model", model, *compiled])
                alone = modules[model, plan.kernels] = median_step(ran)
            step = median_step(call([*SSDSL, "run", *plan.words, "--model", model, *on, *HALF, "--steps", "8"]))
            said = json.loads(call([*SSDSL, "simulate", *plan.words, "--model", model, *HALF, "--cluster", cluster]))
        except Failed as failed:
            yield f"{name(case)}  {failed}"
            continue
        mfu = said["mfu"] * said["step_s"] / step
        yield (
            f"{name(case)}  {step * 1e3:.1f} ms, the module {alone * 1e3:.1f} ms: {step / alone:.2f}; MFU {mfu:.0%}, "
            f"simulated {said['step_s'] * 1e3:.1f} ms"
        )


def median_step(printed: str) -> float:
    """The seconds of a step of a run's JSON, without the first ones."""
    return statistics.median(json.loads(printed)[0]["step_s"][2:])


def trained(plan: Plan, model: str, on: list[str]) -> str:
    """The peak and the median step of a plan in bfloat16 on a GPU."""
    try:
        ran = call([*SSDSL, "run", *plan.words, "--model", model, *on, *HALF, "--meta", "--steps", "8"])
    except Failed as failed:
        return str(failed)
    return figures(json.loads(ran)[0]["peak_bytes"], median_step(ran))


def simulated(plan: Plan, model: str, cluster: str) -> str:
    """The same as the simulator says."""
    try:
        said = call([*SSDSL, "simulate", *plan.words, "--model", model, *HALF, "--cluster", cluster])
    except Failed as failed:
        return str(failed)
    report = json.loads(said)
    return figures(report["peak_bytes"], report["step_s"])


def figures(peak_bytes: int, step_s: float) -> str:
    return f"{peak_bytes / 1e9:.1f} GB, {step_s * 1e3:.0f} ms"


def verified(plan: Plan, model: str, on: list[str]) -> tuple[bool, str]:
    """Whether a plan is equal to one device, and the line that says so or why not."""
    try:
        return True, call([*SSDSL, "verify", *plan.words, "--model", model, *on]).strip().splitlines()[-1]
    except Failed as failed:
        return False, str(failed)


def name(case: tuple[Plan, str]) -> str:
    plan, model = case
    kernels = (plan.kernels,) if plan.kernels != "eager" else ()
    return " ".join((plan.path, model, *plan.settings, *kernels))
