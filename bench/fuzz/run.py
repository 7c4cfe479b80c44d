"""`python -m bench fuzz --minutes 10`: random plans of random models; what is wrong is made small and written down.

With `--use` random training scripts on engines: several runs under several plans, with evaluation, saves and more.
"""

import argparse
import contextlib
import os
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table

from bench.fuzz.layers import ROWS
from bench.fuzz.plans import draw_plan
from bench.fuzz.recipes import draw_recipe
from bench.fuzz.shrink import smaller_cases, smallest
from bench.fuzz.together import splittable
from bench.fuzz.trial import COLUMNS, Case, Outcome, captured, try_case
from bench.fuzz.use import USED, Use, draw_model, draw_use
from bench.fuzz.use_trial import try_use
from ssdsl.model.graph import Stage

PLANS, USES = 10, 3  # of each model
WIDTH = 130  # of tables
T = TypeVar("T", Case, Use)
Counts = Counter[tuple[str, str]]


def main(arguments: list[str]) -> int:
    """Tries plans for some time; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--models", type=int, default=10**9, help="at most so many, for a run that ends the same")
    parser.add_argument("--use", action="store_true", help="programs of use in place of single plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=int, default=2, help="how many failures that look alike are made small")
    parser.add_argument("--shrink-s", type=float, default=20.0, help="seconds for making one small")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder of the reproductions")
    options = parser.parse_args(arguments)
    os.environ.setdefault("SSDSL_COMPILER", "aot_eager_decomp_partition")  # kernels are compiled without C++
    torch.set_num_threads(1)  # tensors are small
    warnings.simplefilter("ignore")
    shutil.rmtree(options.out, ignore_errors=True)
    counts = try_uses(options) if options.use else try_plans(options)
    return int(any(Outcome(*key).is_failure for key in counts))


def try_plans(options: argparse.Namespace) -> Counts:
    """Trains under plans; prints how they ended."""
    counts, columns = tried(cases(options.seed, options.models), try_case, smaller_cases, write, options)
    Console(width=WIDTH).print(report(counts, "plans"), by_row(columns, (*ROWS, "axes of two dimensions", "all")))
    return counts


def try_uses(options: argparse.Namespace) -> Counts:
    """Carries out programs of use; prints how they ended."""
    counts, columns = tried(uses(options.seed, options.models), try_use, Use.smaller, write_use, options)
    Console(width=WIDTH).print(report(counts, "programs"), by_row(columns, (*USED, "all")))
    return counts


def tried(
    trials: Iterable[T],
    attempt: Callable[[T], Outcome],
    simpler: Callable[[T], Iterable[T]],
    write: Callable[[Path, T, Outcome], None],
    options: argparse.Namespace,
) -> tuple[Counts, Counts]:
    """Tries for some time; how many ended in which way, and in which column of which row."""
    counts, columns = Counts(), Counts()
    end = time.monotonic() + 60 * options.minutes
    for trial in trials:
        outcome = attempt(trial)
        key = outcome.kind, outcome.sign
        counts[key] += 1
        columns.update((row, outcome.column) for row in (*trial.rows, "all"))
        if outcome.is_failure and counts[key] <= options.keep:
            small, result = smallest(trial, outcome, options.shrink_s, attempt, simpler)
            folder = options.out / f"{outcome.column.replace(' ', '-')}-{len(list(options.out.glob('*')))}"
            folder.mkdir(parents=True)
            write(folder, small, result)
            print(f"{outcome.kind} {outcome.sign}: {folder}", file=sys.stderr, flush=True)
        if time.monotonic() > end:
            break
    return counts, columns


def cases(seed: int, models: int) -> Iterator[Case]:
    """Some plans of each random model; the same for a seed. Every other one cuts a dimension, each time another."""
    for number in range(models):
        recipe = draw_recipe(Random(f"{seed} {number}"))
        try:
            _, graph = captured(recipe)
        except Exception:  # trying it will say why
            yield Case(recipe, (), "sgd", 1)
            continue
        dims = splittable(o for o in graph.operators if o.stage is Stage.COMPUTE)
        Random(f"{seed} {number}").shuffle(dims)
        for turn in range(PLANS):
            draw = Random(f"{seed} {number} {turn}")
            dim = dims[turn // 2 % len(dims)] if turn % 2 else ""
            yield Case(recipe, draw_plan(draw, graph, dim), draw.choice(["sgd", "adamw"]), 2)


def write(folder: Path, case: Case, outcome: Outcome) -> None:
    """The model, the plan, how to run them, and what happens."""
    (folder / "model.py").write_text(case.recipe.text)
    (folder / "plan.ssp").write_text(case.plan_text)
    command = f"ssdsl verify plan.ssp --model model.py:net --optimizer {case.optimizer} --steps {case.steps} --lr 0.02"
    command += (" --meta" if case.recipe.meta else "") + f" --generator {case.recipe.generator}"
    (folder / "command").write_text(f"{command}\n")
    (folder / "outcome").write_text(f"{outcome.kind} {outcome.sign}\n{outcome.text}\n")


def uses(seed: int, models: int) -> Iterator[Use]:
    """Some programs of use of each random model; the same for a seed."""
    for number in range(models):
        recipe, is_autocast = draw_model(Random(f"use {seed} {number}"))
        with contextlib.suppress(Exception):  # what cannot be captured is for plans to find
            model, graph = captured(recipe)
            for turn in range(USES):
                yield draw_use(Random(f"use {seed} {number} {turn}"), recipe, is_autocast, model, graph)


def write_use(folder: Path, use: Use, outcome: Outcome) -> None:
    """The model, a script that repeats what happens, and what that is."""
    (folder / "model.py").write_text(use.recipe.text)
    (folder / "repeat.py").write_text(REPEAT.format(use=use))
    (folder / "outcome").write_text(f"{outcome.kind} {outcome.sign}\n{outcome.text}\n")


REPEAT = """from bench.fuzz.models import Recipe
from bench.fuzz.use import Evaluate, Predict, Resume, Run, Save, Train, Use
from bench.fuzz.use_trial import try_use

print(try_use({use}))
"""


def report(counts: Counts, what: str) -> Table:
    """How many trials ended how, and the share of refused ones."""
    total = counts.total()
    table = Table("outcome", "what", what, "share", title=f"{total} {what}")
    order = ("equal", "refused")
    for (kind, sign), count in sorted(counts.items(), key=lambda c: (c[0][0] not in order, c[0][0], -c[1])):
        table.add_row(kind, sign, str(count), f"{count / total:.1%}")
    table.add_section()
    refused = sum(c for (kind, _), c in counts.items() if kind == "refused")
    failed = sum(c for key, c in counts.items() if Outcome(*key).is_failure)
    table.add_row("refused", "in all", str(refused), f"{refused / total:.1%}" if total else "")
    table.add_row("wrong", "in all", str(failed), f"{failed / total:.1%}" if total else "")
    return table


def by_row(columns: Counts, rows: Iterable[str]) -> Table:
    """How trials ended, for each thing that they have; one counts in each row whose thing it has."""
    table = Table("with", "tried", *COLUMNS, "share refused")
    for row in rows:
        counts = [columns[row, column] for column in COLUMNS]
        if total := sum(counts):
            table.add_row(row, *map(str, (total, *counts)), f"{columns[row, 'refused'] / total:.1%}")
    return table
