"""Right plans are not called wrong, and a mistake of a per cent of a gradient's largest element is found."""

import pytest

from bench.models.plans import PLANS
from bench.rounding.models import MODELS
from bench.rounding.run import Runs, compiled, try_model
from ssdsl.model.module_to_graph import capture
from ssdsl.run.verify.error_growth import SingleDevice
from ssdsl.runtime.options import Training

QUICK = ("max of sizes", "pads, squares", "codebook, float64", "autocast, noise", "bfloat16, batch norm")


@pytest.mark.thinned(6)
@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", QUICK)
def test_models_whose_rounding_is_hard_to_foresee(name: str) -> None:
    found = try_model(name, tried=("data",))
    assert found.alarms == found.missed == () and found.equal == 1
    assert found.planted[0] >= 1


def test_what_hides_in_bfloat16_is_found_in_float64() -> None:
    model = MODELS["bfloat16"].build()
    program = compiled(PLANS["data"], capture(model), model)
    assert program is not None
    runs = Runs(SingleDevice(model, Training(2, optimizer="sgd", lr=0.02)), program)
    assert runs.judged("parts.a.weight", 0.5, 0.02, alone=True) == ""
    assert runs.judged("parts.a.weight", 0.5, 0.02).startswith("gradient in float64 step 0 parts.a.weight")
