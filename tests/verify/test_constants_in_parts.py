"""A constant that all readers on a device cut alike is kept in parts: it is as large as the pairs of a whole batch."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.compile import compile_source
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.simulate.memory.memory import Inputs
from ssdsl.text.source import Source
from tests.verify.conftest import HERE, captured

MODEL = f"{HERE.parent / 'models' / 'siglip.py'}:pairs"
ROWS = "mesh gpus(dp = 4)\nsplit model by batch into dp\nsplit model by batch.1 into c = 2 where possible\n"
PLANS = {
    "rows": f"{ROWS}assign model to gpus\n",
    "recomputed": f"{ROWS}recompute model[c = any]\nassign model to gpus\n",
    "unequal": "mesh gpus(dp = 2)\nsplit model by batch into dp = [9, 7]\nassign model to gpus\n",
    "tiles": "mesh gpus(r = 2, k = 2)\nsplit model by batch.0 into r where possible\n"
    "split model by batch.1 into k where possible\nassign model to gpus\n",
    "whole": "mesh gpus(dp = 2)\nassign model to gpus\n",
}


def program(plan: str) -> Program:
    return compile_source(Source("plan.ssp", PLANS[plan]), captured(MODEL)[1], {}, Path()).program


@pytest.mark.parametrize("plan", PLANS)
def test_numbers_are_those_of_one_device(plan: str) -> None:
    outcome = try_plan(*captured(MODEL), PLANS[plan], Training(2, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(("plan", "numbers"), [("rows", 4 * 16), ("tiles", 8 * 8), ("whole", 16 * 16)])
def test_the_part_that_a_device_keeps(plan: str, numbers: int) -> None:
    """And no more is counted than the inputs beside it."""
    found = program(plan)
    (prologue,), (role,) = found.prologues, found.roles
    (signs,) = (v for v in prologue.given if v.name.value not in ("image", "text"))
    assert signs.elements == numbers
    assert Inputs(ProgramIndex(found)).of(role) == sum(4 * v.elements for v in prologue.given)
