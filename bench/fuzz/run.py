"""`python -m bench fuzz --minutes 10`: random plans of random models; what is wrong is made small and written down."""

import argparse
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.table import Table

from bench.fuzz.models import draw_recipe
from bench.fuzz.plans import draw_plan
from bench.fuzz.shrink import shrink
from bench.fuzz.trial import Case, Outcome, captured, try_case

PLANS = 20  # of each model


def main(arguments: list[str]) -> int:
    """Tries plans for some time; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--models", type=int, default=10**9, help="at most so many, for a run that ends the same")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=int, default=2, help="how many failures that look alike are made small")
    parser.add_argument("--shrink-s", type=float, default=20.0, help="seconds for making one small")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder of the reproductions")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # tensors are small
    warnings.simplefilter("ignore")
    shutil.rmtree(options.out, ignore_errors=True)
    counts: Counter[tuple[str, str]] = Counter()
    end = time.monotonic() + 60 * options.minutes
    for case in cases(options.seed, options.models):
        outcome = try_case(case)
        key = outcome.kind, outcome.sign
        counts[key] += 1
        if outcome.is_failure and counts[key] <= options.keep:
            small, result = shrink(case, outcome, options.shrink_s)
            folder = options.out / f"{outcome.kind}-{len(list(options.out.glob('*')))}"
            write(folder, small, result)
            print(f"{outcome.kind} {outcome.sign}: {folder}", file=sys.stderr, flush=True)
        if time.monotonic() > end:
            break
    Console().print(report(counts))
    return int(any(Outcome(kind).is_failure for kind, _ in counts))


def cases(seed: int, models: int) -> Iterator[Case]:
    """Some plans of each random model; the same for a seed."""
    for number in range(models):
        recipe = draw_recipe(Random(f"{seed} {number}"))
        try:
            _, graph = captured(recipe)
        except Exception:  # trying it will say why
            yield Case(recipe, (), "sgd", 1)
            continue
        for turn in range(PLANS):
            draw = Random(f"{seed} {number} {turn}")
            yield Case(recipe, draw_plan(draw, graph), draw.choice(["sgd", "adamw"]), 2)


def write(folder: Path, case: Case, outcome: Outcome) -> None:
    """The model, the plan, how to run them, and what happens."""
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(case.recipe.text)
    (folder / "plan.ssp").write_text(case.plan_text)
    command = f"ssdsl verify plan.ssp --model model.py:net --optimizer {case.optimizer} --steps {case.steps} --lr 0.02"
    command += (" --meta" if case.recipe.meta else "") + f" --generator {case.recipe.generator}"
    (folder / "command").write_text(f"{command}\n")
    (folder / "outcome").write_text(f"{outcome.kind} {outcome.sign}\n{outcome.text}\n")


def report(counts: Counter[tuple[str, str]]) -> Table:
    """How many plans ended how, and the share of refused ones."""
    total = counts.total()
    table = Table("outcome", "what", "plans", "share", title=f"{total} plans")
    order = ("equal", "refused")
    for (kind, sign), count in sorted(counts.items(), key=lambda c: (c[0][0] not in order, c[0][0], -c[1])):
        table.add_row(kind, sign, str(count), f"{count / total:.1%}")
    table.add_section()
    refused = sum(c for (kind, _), c in counts.items() if kind == "refused")
    failed = sum(c for (kind, _), c in counts.items() if Outcome(kind).is_failure)
    table.add_row("refused", "in all", str(refused), f"{refused / total:.1%}" if total else "")
    table.add_row("wrong", "in all", str(failed), f"{failed / total:.1%}" if total else "")
    return table
