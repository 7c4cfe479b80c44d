"""Loops whose states are linear recurrences: which of them are scans, and plans for them against one device."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.models.recurrences import LOOPS, SCANS
from tests.verify.conftest import captured

TRAINING = Training(2, optimizer="adamw", lr=0.05)
NAMES = [kind.__name__ for kind in SCANS]


def plan(axes: str, *lines: str) -> str:
    words = "".join(f"{line}\n" for line in lines)
    return f"mesh gpus({axes})\n{words}assign model to gpus\n"


PLANS = {
    "seq": plan("cp = 4", "split model by seq into cp"),
    "unequal": plan("cp = 2", "split model by seq into cp = [3, 5] where possible"),
    "heads": plan("cp = 2, tp = 2", "split model by seq into cp", "split model by heads into tp where possible"),
    "micro": plan("cp = 2", "split model by batch into m = 2", "split model by seq into cp"),
    "zero": plan("cp = 2", "split model by seq into cp", "split model.weights by row into cp"),
    "recomputed": plan("cp = 2", "split model by seq into cp", 'recompute model["layer"]'),
}


def count(name: str) -> int:
    _, graph = captured(f"recurrences.py:net_{name}")
    return sum(operator.kind == "linear_scan" for operator in graph.operators)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_loop_with_a_linear_state_is_one_scan(name: str) -> None:
    _, graph = captured(f"recurrences.py:net_{name}")
    assert count(name) == 1 and len(graph.operators) < 60


@pytest.mark.parametrize("name", [kind.__name__ for kind in LOOPS])
def test_other_loops_stay(name: str) -> None:
    assert count(name) == 0


@pytest.mark.covering
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_one_device(name: str, text: str) -> None:
    model, graph = captured(f"recurrences.py:net_{name}")
    outcome = try_plan(model, graph, text, TRAINING)
    assert outcome.kind == "equal", outcome.text
