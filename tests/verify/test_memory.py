"""Operators that depend on memory, under plans that gather, join and slice, in process, against one device."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.runtime.options import Training
from tests.verify.conftest import HERE, captured

MODELS = str(HERE.parent / "models" / "memory.py")
ALL = "assign model to gpus\n"
SLICES = "split model by seq into m = [1, 5]\n"
PLANS = {
    "slices": f"mesh gpus(tp = 1)\n{SLICES}{ALL}",
    "unequal": f'mesh gpus(tp = 2)\nsplit model by "up.weight.0" into tp where possible\n{ALL}',
    "sharded": "mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.weights by row into dp\n"
    f"split model by seq into m = 2\nrecompute model\n{ALL}",
}
NAMES = ("pairs", "halves", "written", "own", "bits", "windows", "merged", "dead", "spectral", "addends")


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_plans_are_proved_and_compute_what_one_device_computes(name: str, plan: str) -> None:
    outcome = try_plan(*captured(f"{MODELS}:{name}"), PLANS[plan], Training(1, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(("name", "axis"), [("pairs", "up.weight.0_inner1"), ("written", "slice_scatter_pairs.out")])
def test_the_axis_that_pairs_lie_in_is_gathered(name: str, axis: str) -> None:
    plan = f'mesh gpus(tp = 2)\nsplit model by "{axis}" into tp where possible\n{ALL}'
    outcome = try_plan(*captured(f"{MODELS}:{name}"), plan, Training(1, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text
