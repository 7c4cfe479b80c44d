"""Trains under four plans and on one device, and draws the five curves: python curves.py --out runs/curves

They may differ by rounding, which training makes larger. How much larger is measured, as `ssdsl verify` does: the
single device again, with the last digit of its weights and of single numbers wrong. After k steps a plan's loss may
be off by FACTOR times what those runs were off by until then, or by the rounding of a loss.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

import torch
from alone import train
from picture import picture
from settings import Settings, parser, settings_of

from ssdsl.model.load.from_module import model_of
from ssdsl.run.in_process.precision import RoundedScalars, nudged, precision
from ssdsl.run.verify.compare import FACTOR, LOSS_UNITS
from ssdsl.run.verify.error_growth import SEED

HERE = Path(__file__).parent
RUNS = 4  # with other last digits
PLANS = {  # name: plan, parameters, processes
    "data parallel": ("data_parallel", ("D=2",), 2),
    "tensor parallel": ("tensor_parallel", ("T=2",), 2),
    "1F1B pipeline": ("megatron", ("T=1", "S=2", "M=4"), 2),
    "ZeRO-3": ("zero", ("D=2", "Z=3"), 2),
}
Curves = Mapping[str, Sequence[float]]


def main() -> None:
    options = parser()
    options.add_argument("--out", type=Path, default=Path("runs/curves"))
    given = options.parse_args()
    settings = settings_of(given)
    alone, allowed = on_one_device(settings)
    plans = {name: under_plan(name, settings, given.out) for name in PLANS}
    (given.out / "losses.json").write_text(json.dumps({"one device": alone, "allowed": allowed, **plans}))
    (given.out / "curves.svg").write_text(picture({"one device": alone, **plans}, allowed))
    print(table(plans, alone, allowed))
    if any(worst_share(losses, alone, allowed)[0] > 1 for losses in plans.values()):
        sys.exit("the losses of a plan are further off than rounding explains")


def on_one_device(settings: Settings) -> tuple[list[float], list[float]]:
    """The losses of the single device, and by how much another run's may differ, step by step."""
    model = model_of(settings.model(), settings.example())
    unit = precision(model)
    alone = train(settings, settings.model(), every=50)
    growth = [0.0] * settings.steps
    for run in range(RUNS):
        with RoundedScalars(SEED + run):
            other = train(settings, nudged(model, SEED + run, unit).module)
        growth = [max(g, abs(a - b)) for g, a, b in zip(growth, alone, other, strict=True)]
    rounding = LOSS_UNITS * torch.finfo(unit).eps
    until = accumulate(growth, max)
    return alone, [max(FACTOR * g, rounding * loss) for g, loss in zip(until, alone, strict=True)]


def under_plan(name: str, settings: Settings, out: Path) -> list[float]:
    """The losses under a plan, which are in the log of its run; a run that was ended goes on."""
    plan, params, processes = PLANS[name]
    folder = out / plan
    options = [f"--{key}={value}" for key, value in asdict(settings).items() if value != ""]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    script = [str(HERE / "train.py"), f"--plan={plan}", *(f"--set={p}" for p in params), f"--out={folder}", *options]
    subprocess.run([*launcher, *script], check=True, env={"OMP_NUM_THREADS": "1", **os.environ})
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def worst_share(losses: Sequence[float], alone: Sequence[float], allowed: Sequence[float]) -> tuple[float, int]:
    """The largest part of what is allowed that a loss is off by, and its step; NaN and missing steps are infinitely."""
    if len(losses) != len(alone):
        return float("inf"), len(losses)
    shares = [abs(a - b) / most for a, b, most in zip(losses, alone, allowed, strict=True)]
    shares = [share if share == share else float("inf") for share in shares]
    worst = max(shares)
    return worst, shares.index(worst)


def table(plans: Curves, alone: Sequence[float], allowed: Sequence[float]) -> str:
    """A row for each plan."""
    rows = [f"{'':16} {'last loss':>10} {'largest error':>14} {'of allowed':>11}  in step"]
    rows.append(f"{'one device':16} {alone[-1]:10.6f}")
    for name, losses in plans.items():
        error = max(abs(a - b) for a, b in zip(losses, alone, strict=False))
        share, step = worst_share(losses, alone, allowed)
        rows.append(f"{name:16} {losses[-1]:10.6f} {error:14.2e} {share:10.1%}  {step}")
    return "\n".join([*rows, f"allowed in step 0: {allowed[0]:.2e}, in step {len(alone) - 1}: {allowed[-1]:.2e}"])


if __name__ == "__main__":
    main()
