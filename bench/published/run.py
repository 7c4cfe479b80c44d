"""`python -m bench published`: published models, each captured at its size and proved under shipped plans."""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.published.sources import SOURCES
from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph import Origin
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

CONFIGS = Path(__file__).parent / "configs"
PLANS = ("data_parallel", "megatron", "zero")


class Row(Record):
    """A model: the number of its weights, the seconds of its capture, and what became of each plan: proved, or the code
    of its refusal. `refused` has the reasons."""

    name: str
    weights: int
    captured_s: float
    plans: tuple[str, ...]
    refused: tuple[str, ...] = ()


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each model; 1 if a plan was not proved."""
    parser = argparse.ArgumentParser(prog="python -m bench published", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*SOURCES], help="only this model; may be repeated")
    parser.add_argument("--keep", action="store_true", help="read captured graphs from the cache, and write them there")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only or SOURCES:
        rows.append(row_of(name, keep=options.keep))
        print(f"{name}: {', '.join(rows[-1].plans)}", file=sys.stderr, flush=True)
    console = Console()
    console.print(table(rows))
    for reason in (reason for row in rows for reason in row.refused):
        console.print(reason, highlight=False, markup=False)
    return int(any(row.refused for row in rows))


def row_of(name: str, *, keep: bool) -> Row:
    """A model under the plans."""
    start = time.monotonic()
    try:
        graph = captured(ModelRequest(f"hf:{CONFIGS / name}.json", meta=True), keep=keep).graph
    except PlanError as error:
        return Row(name, 0, 0.0, (error.diagnostics[0].code,) * len(PLANS), tuple(_reasons(name, "", error)))
    taken, said, refused = time.monotonic() - start, list[str](), list[str]()
    for plan in PLANS:
        path = plan_path(plan)
        try:
            compile_plan(path, graph, {})
            said.append("proved")
        except PlanError as error:
            said.append(error.diagnostics[0].code)
            refused += _reasons(name, plan, error)
    weights = sum(math.prod(value.shape) for value in graph.of(Origin.WEIGHT))
    return Row(name, weights, taken, tuple(said), tuple(refused))


def _reasons(name: str, plan: str, error: PlanError) -> Iterator[str]:
    for found in error.diagnostics[:1]:
        yield f"{name} {plan}: {found.code} {found.text(found.title)} {found.text(found.note)}".strip()


def table(rows: list[Row]) -> Table:
    """A line for each model, a column for each plan."""
    proved = sum(not row.refused for row in rows)
    found = Table("model", "weights", "captured", *PLANS, title=f"{proved} of {len(rows)} proved")
    for row in rows:
        found.add_row(SOURCES[row.name], f"{row.weights / 1e9:.2f} B", f"{row.captured_s:.0f} s", *row.plans)
    return found
