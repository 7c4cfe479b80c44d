"""`python -m bench works`: tries each pair of statements on small models, and writes the section of docs/works.md."""

import argparse
import contextlib
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import torch

from bench.works.page import Cells, Found, Pair, faults, found_of, section_of, with_section
from bench.works.snippets import SNIPPETS, Snippet, kernels_of, pairs, plan_of
from ssdsl.ir.program import Kernels
from ssdsl.matrix.cell import Cell, CellOutcome, PlanText
from ssdsl.matrix.trials import Trials
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.plan.errors.select import NoSuchKind, NoSuchPath
from ssdsl.plan.errors.split import NoSuchDimension
from ssdsl.run.verify.in_threads import VerifierInThreads
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace

MODELS = {
    "gpt": "gpt:tiny,hidden=32,seq=16,vocab=64",
    "mixtral": "mixtral:tiny,layers=4,vocab=64,balance=0",
    "swin": "swin:tiny,image=32,hidden=16",
    "vgg": "vgg:tiny",
}
COMPILED_ON = ("gpt", "mixtral", "vgg")  # where kernels of torch.compile are tried: they take seconds to compile
PAGE = Path(__file__).parents[2] / "docs" / "works.md"
COMPILER = "aot_eager_decomp_partition"  # kernels are compiled without C++
SLOW = 10  # times the work of other pairs
WHOLE = 0.99  # of the work: a split that leaves so much is of something else
NAMES = NoSuchDimension, NoSuchPath, NoSuchKind  # what says that a model has none
TRAINING = Training(2, optimizer="sgd", lr=0.05, allow_nan=True)


def main(arguments: list[str]) -> int:
    """Tries the pairs, and writes the page; 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench works", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--statement", action="append", help="only pairs with this one; may be repeated; nothing is written"
    )
    parser.add_argument("--model", action="append", choices=[*MODELS], help="only this model")
    parser.add_argument("--everywhere", action="store_true", help="train each pair on all models, not on one")
    options = parser.parse_args(arguments)
    wanted = options.statement or [s.name for s in SNIPPETS]
    chosen = [(a.name, b.name) for a, b in pairs() if {a.name, b.name} & {*wanted}]
    cells = try_pairs(chosen, {name: MODELS[name] for name in options.model or MODELS}, options.everywhere)
    section = section_of(cells, MODELS)
    for fault in faults(cells):
        print(fault, file=sys.stderr)
    if options.statement or options.model:
        print(section)
    else:
        PAGE.write_text(with_section(PAGE.read_text("utf-8") if PAGE.exists() else "", section), "utf-8")
    return int(any(cell.is_wrong for of_pair in cells.values() for cell in of_pair.values()))


def try_pairs(chosen: Sequence[Pair], models: Mapping[str, str], everywhere: bool) -> Cells:
    """What becomes of each pair on each model on which both of its statements work alone: proved, and trained on one of
    them, or `everywhere`. Each model has a process."""
    cells: Cells = {pair: {} for pair in chosen}
    with contextlib.ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        pools = {name: stack.enter_context(ProcessPoolExecutor(1, spawn)) for name in models}
        proved = {name: pool.submit(pairs_on, name, models[name], chosen, False) for name, pool in pools.items()}
        for name, running in proved.items():
            for pair, found in running.result().items():
                cells[pair][name] = found
        trained = {
            name: pools[name].submit(pairs_on, name, models[name], pairs, True)
            for name, pairs in shared_out(cells, everywhere).items()
        }
        for name, running in trained.items():
            for pair, found in running.result().items():
                cells[pair][name] = found
    return cells


def shared_out(cells: Cells, everywhere: bool) -> dict[str, list[Pair]]:
    """The pairs that each model trains: all that are proved, or each pair on one model, so that all have about as much
    to do."""
    found: dict[str, list[Pair]] = {}
    work: Counter[str] = Counter()
    for pair, of_pair in cells.items():
        able = [name for name, cell in of_pair.items() if cell.outcome is CellOutcome.PROVED]
        for name in able if everywhere else sorted(able, key=lambda name: work[name])[:1]:
            found.setdefault(name, []).append(pair)
            work[name] += SLOW if "compiled" in pair else 1
    return found


@cache
def tries_on(name: str, spec: str) -> "Tries":
    """The model, in this process."""
    os.environ.setdefault("SSDSL_COMPILER", COMPILER)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return Tries(name, spec)


def pairs_on(name: str, spec: str, chosen: Sequence[Pair], trains: bool) -> dict[Pair, Found]:
    """The pairs on one model, on which their statements work alone."""
    model, known, cells = tries_on(name, spec), {s.name: s for s in SNIPPETS}, dict[Pair, Found]()
    for number, (one, other) in enumerate(chosen, 1):
        snippets = tuple(dict.fromkeys((known[one], known[other])))
        if (len(snippets) == 1 and not model.lacks(snippets[0])) or (
            len(snippets) > 1 and all(map(model.works, snippets))
        ):
            cells[one, other] = found_of(model.of(*snippets, trains=trains))
        if number % 50 == 0 or number == len(chosen):
            done = "trained" if trains else "proved"
            print(f"{name}: {number} of {len(chosen)} {done}", file=sys.stderr, flush=True)
    return cells


class Tries:
    """A model, captured once, on which plans of one or two snippets are tried, each once."""

    def __init__(self, name: str, spec: str) -> None:
        self.name = name
        held = captured(ModelRequest(spec, trains=True))
        self._trials: dict[tuple[Kernels, bool], Trials] = {}
        for kernels in (Kernels.EAGER, Kernels.COMPILED):
            workspace = Workspace(held.graph, kernels=kernels)
            verifier = VerifierInThreads(held.model, held.graph, TRAINING, kernels)
            self._trials[kernels, False] = Trials(name, workspace)
            self._trials[kernels, True] = Trials(name, workspace, verifier)
        self._known: dict[tuple[str, ...], Cell] = {}

    def lacks(self, snippet: Snippet) -> bool:
        """Whether the model has nothing of weight that the snippet names: nobody would say it of such a model."""
        if Kernels.COMPILED is snippet.kernels and self.name not in COMPILED_ON:
            return True
        cell = self.of(snippet)
        is_whole = bool(snippet.axes) and cell.is_proved and (cell.work or 0.0) > WHOLE
        return is_whole or isinstance(cell.reason, NAMES)

    def works(self, snippet: Snippet) -> bool:
        """Whether the snippet alone is a plan for the model."""
        return not self.lacks(snippet) and self.of(snippet).is_proved

    def of(self, *snippets: Snippet, trains: bool = False) -> Cell:
        """What becomes of the plan that says all of these."""
        key = (*(snippet.name for snippet in snippets), *(("trained",) if trains else ()))
        if key not in self._known:
            text = PlanText(" x ".join(key), Source("plan.ssp", plan_of(*snippets)))
            self._known[key] = self._trials[kernels_of(*snippets), trains].cell(text, {})
        return self._known[key]
