"""Passes of the lowering show in their docstrings what they change: lines of the printed stage before and after."""

import difflib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ssdsl.ir.program import Kernels
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import PASSES, lower
from ssdsl.lower.print_stage import stage_text
from ssdsl.lower.stages import Planned
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.source import Source
from tests.captured import captured

CHAIN = f"{Path(__file__).parents[1]}/models/tiny.py:chain"
ZERO = """\
mesh gpus(dp = 2)
split model by batch into dp
split model.weights by row into dp
assign model to gpus
"""
ZERO_1 = ZERO.replace(".weights", ".optimizer")
RECOMPUTED = """\
mesh gpus(dp = 2)
split model by batch into dp
recompute model.gelu
assign model to gpus
"""
TENSOR = """\
mesh gpus(tp = 2)
split model by hidden into tp
assign model to gpus
"""
STAGES = """\
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by batch into m = 2
assign stage[s] to gpus[pp = s] for s in 0..2
"""
DATA = """\
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
"""
IN_TURN = """\
mesh gpus(tp = 2)
split model by batch into half = 2
split model by ffn into tp
assign model to gpus
order model["layers.0"].fwd[half = 0] -> model["layers.0"].fwd[half = 1] -> model["layers.1"].fwd[half = 0]
"""
PLANS = {
    "form_functions": STAGES,
    "home_matrices": ZERO_1.replace("by row", "by matrix"),
    "place_params": ZERO,
    "form_sections": RECOMPUTED,
    "compiled_runs": DATA,
    "overwrite": TENSOR,
    "flatten_params": ZERO,
    "gather_weights": ZERO,
    "prefetch_weights": ZERO,
    "await_updates": ZERO_1,
    "drop_results": RECOMPUTED,
    "schedule_tasks": STAGES,
    "start_across_tasks": IN_TURN,
    "place_events": STAGES,
}
CHANGED = re.compile(r"^ {8}([-+] .*)$", re.MULTILINE)


@cache
def changes(plan: str) -> dict[str, list[str]]:
    """By pass, the lines that it adds to the printed stage (`+ `) or takes away (`- `)."""
    found: dict[str, list[str]] = {}
    before: list[str] = []

    def after(name: str, stage: Planned) -> None:
        now = stage_text(stage).splitlines()
        found[name] = [line for line in difflib.ndiff(before, now) if line.startswith(("- ", "+ "))]
        before[:] = now

    kernels = Kernels.COMPILED if plan == DATA else Kernels.EAGER
    lower(interpret_all(parse(Source("plan.ssp", plan)), captured(CHAIN)[1], {}, None)[0], after=after, kernels=kernels)
    return found


@pytest.mark.parametrize("name", PLANS)
def test_a_docstring_shows_lines_that_the_pass_changes(name: str) -> None:
    (step,) = (p for p in PASSES if p.__name__ == name)
    shown = CHANGED.findall(step.__doc__ or "")
    assert shown and list(_in_order(shown, changes(PLANS[name])[name])) == shown


def test_each_docstring_with_changes_is_compared() -> None:
    assert {p.__name__ for p in PASSES if CHANGED.search(p.__doc__ or "")} == PLANS.keys()


def _in_order(shown: list[str], lines: list[str]) -> Iterator[str]:
    """Those of the shown lines that are among the others, in their order."""
    rest = iter(lines)
    return (line for line in shown if line in rest)
