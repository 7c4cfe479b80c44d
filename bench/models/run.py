"""`python -m bench models`: families of models under common plans, each against the single device."""

import argparse
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from bench.fuzz.trial import Outcome, try_plan
from bench.models.combined import COMBINED
from bench.models.families import FAMILIES, build
from bench.models.nasty import NASTY
from bench.models.plans import HARDER, PLANS
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError

TRAINING = Training(2, optimizer="sgd", lr=0.02)
SHORT = 160  # characters of a reason in the table


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the table and the plans for it."""

    family: str
    head: str
    build: Callable[[], Model]
    plans: dict[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of a plan on a model: `equal`, `refused` with a code and its reason, or what went wrong."""

    family: str
    head: str
    plan: str
    outcome: str
    code: str
    reason: str
    seconds: float

    @property
    def is_failure(self) -> bool:
        return Outcome(self.outcome).is_failure


def main(arguments: list[str]) -> int:
    """Prints the table; 1 if a plan went wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench models", description=__doc__)
    parser.add_argument(
        "--family", action="append", choices=[*FAMILIES, "nasty"], help="only this one; may be repeated"
    )
    parser.add_argument("--head", action="append", help="only this head, such as causal")
    parser.add_argument("--plan", action="append", choices=[*PLANS, *HARDER], help="only this plan")
    parser.add_argument("--no-dropout", action="store_true", help="set all probabilities of dropout to zero")
    parser.add_argument("--json", action="store_true", help="one list of cells instead of the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # tensors are small
    warnings.simplefilter("ignore")
    cells = []
    for row in rows(not options.no_dropout):
        if row.family in (options.family or [row.family]) and row.head in (options.head or [row.head]):
            found = [*try_row(row, options.plan or [*row.plans])]
            print(f"{row.family} {row.head}: {', '.join(c.outcome for c in found)}", file=sys.stderr, flush=True)
            cells += found
    if options.json:
        print(json.dumps([asdict(c) for c in cells], indent=1))
    else:
        console = Console()
        console.print(table(cells))
        for line in reasons(cells):
            console.print(line, highlight=False, markup=False)
    return int(any(c.is_failure for c in cells))


def rows(dropout: bool) -> Iterator[Row]:
    for family, row in FAMILIES.items():
        for head in row.heads:
            yield Row(family, head, partial(build, family, head, dropout=dropout), PLANS)
    for name, model in (NASTY | COMBINED).items():
        yield Row("nasty", name, partial(model.build, name), model.plans)


def try_row(row: Row, names: list[str]) -> Iterator[Cell]:
    """The cells of a row. What is wrong with the model stands in all of them."""
    start = time.monotonic()
    refused: Outcome | None = None
    try:
        model = row.build()
        graph = capture(model)
    except PlanError as error:
        first = error.diagnostics[0]
        refused = Outcome("refused", first.code, f"{first.text(first.title)}: {first.text(first.note)}".rstrip(": "))
    except Exception as error:
        refused = Outcome("crash", type(error).__name__, "".join(traceback.format_exception(error)))
    for name in (n for n in names if n in row.plans):
        outcome = refused or try_plan(model, graph, row.plans[name], TRAINING)
        yield Cell(
            row.family, row.head, name, outcome.kind, outcome.sign, outcome.text, round(time.monotonic() - start, 2)
        )
        start = time.monotonic()


def table(cells: list[Cell]) -> Table:
    """A line for each model, a column for each plan."""
    plans = list(dict.fromkeys(c.plan for c in cells))
    equal = sum(c.outcome == "equal" for c in cells)
    found = Table("family", "head", *plans, title=f"{equal} of {len(cells)} equal to the single device")
    for family, head in dict.fromkeys((c.family, c.head) for c in cells):
        of_row = {c.plan: c for c in cells if (c.family, c.head) == (family, head)}
        found.add_row(family, head, *(_shown(of_row[p]) if p in of_row else "" for p in plans))
    return found


def _shown(cell: Cell) -> str:
    return {"equal": "equal", "refused": cell.code}.get(cell.outcome, f"{cell.outcome.upper()} {cell.code}".strip())


def reasons(cells: list[Cell]) -> Iterator[str]:
    """Why plans were not carried out, each reason once with the models and plans that it stopped."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in (c for c in cells if c.outcome != "equal"):
        *_, last = cell.reason.strip().splitlines() or [""]
        key = cell.outcome, last if cell.outcome == "crash" else cell.reason.strip().partition("\n")[0]
        found.setdefault(key, {}).setdefault(f"{cell.family} {cell.head}", []).append(cell.plan)
    for (outcome, reason), models in found.items():
        where = "; ".join(f"{model} ({', '.join(plans)})" for model, plans in models.items())
        yield f"{outcome}: {reason[:SHORT]}\n  {where}"
