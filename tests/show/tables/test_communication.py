"""`show comm` counts what the program does: its sums are the textbooks' numbers, which `verify` counts in real runs."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan
from ssdsl.ir.program import Program
from ssdsl.model.graph import Graph
from ssdsl.show.tables.communication import communication_view, communications
from ssdsl.show.view import as_json
from tests.captured import graph_of
from tests.verify.test_communication import LEDGER, added

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def program() -> Callable[..., Program]:
    @cache
    def gpt() -> Graph:
        return graph_of("gpt:tiny")

    def compiled(name: str, **params: int) -> Program:
        found = (ROOT / folder / f"{name}.ssp" for folder in ("examples", "stdlib", "tests/verify/plans"))
        return compile_plan(next(p for p in found if p.exists()), gpt(), params).program

    return compiled


@pytest.mark.parametrize("name", LEDGER)
def test_ledger(program: Callable[..., Program], name: str) -> None:
    plan, _, rank = name.partition(" rank ")
    plan, _, setting = plan.partition(" ")
    param, _, value = setting.partition("=")
    compiled = program(plan, **({param: int(value)} if param else {}))
    calls, sizes = Counter[str](), Counter[str]()
    for c in communications(compiled):
        if int(rank or 0) in c.on.ranks():
            calls[c.kind] += c.calls
            sizes[c.kind] += c.size_bytes
    assert {kind: (calls[kind], sizes[kind]) for kind in calls} == added(LEDGER[name])


def test_recomputed_sections_communicate_again() -> None:
    folder = ROOT / "tests" / "ir"
    graph = graph_of(f"{folder / 'models.py'}:residual")
    rows = as_json(communication_view(compile_plan(folder / "programs" / "recompute.ssp", graph, {}).program))
    counted = {(row["when"], row["of"]): (row["calls"], row["bytes"]) for row in rows}
    assert counted == {
        ("forward", "mlp.*.2 linear"): (2, 2 * 8 * 8 * 4),
        ("backward", "mlp.*.2 linear"): (2, 2 * 8 * 8 * 4),  # again, to compute what the residual keeps
        ("backward", ". add"): (1, 8 * 8 * 4),
    }
