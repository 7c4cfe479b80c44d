"""Losses that are NaN on the plan and on the single device compare nothing, and `verify` says so."""

from math import inf, nan

import pytest
import torch

from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.run.verify.compare import Comparison, compare
from ssdsl.run.verify.error_growth import SingleDevice
from ssdsl.run.verify.verify import difference, nothing_compared
from ssdsl.runtime.options import Training
from ssdsl.show.tables.verdict import equal_text, verdict_json, verdict_view
from ssdsl.text.render import render


class Net(torch.nn.Module):
    """Divides by a number that is zero in some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (self.two(self.one(x) / by) ** 2).mean()


def net(*by: float) -> Model:
    torch.manual_seed(0)
    batches = tuple({"x": torch.randn(2, 4), "by": torch.full((2, 4), number)} for number in by)
    return Model("net", Net(), batches, {"x": ("batch", "feature"), "by": ("batch", "feature")})


def compared(model: Model) -> tuple[Comparison, ...]:
    device = SingleDevice(model, Training(steps=3, optimizer="sgd", lr=0.1))
    return compare(device.trained, device.trained, device.growth, device.precision)


def test_a_loss_that_is_nan_from_the_first_step_is_an_error() -> None:
    model = net(0.0)
    found = compared(model)
    assert difference(found) is None and verdict_json(found, 2)["verdict"] == "not compared"
    assert verdict_json(found, 2)["compared"] == 0
    error = nothing_compared(found, model, capture(model))
    assert error is not None
    text = render(error)
    assert "first infinity is in the result of `div`, test_uncompared.py:" in text
    assert "first NaN is in the result of `linear` in module `two`" in text


def test_a_weight_that_is_nan_is_the_place() -> None:
    model = net(1.0)
    torch.nn.init.constant_(model.module.one.bias, nan)
    error = nothing_compared(compared(model), model, capture(model))
    assert error is not None and "the first NaN is in `one.bias`" in render(error)


@pytest.mark.parametrize("by", [0.0, nan])
def test_steps_before_the_loss_is_nan_are_counted(by: float) -> None:
    model = net(1.0, by)
    found = compared(model)
    assert nothing_compared(found, model, capture(model)) is None
    assert equal_text(found, 2).startswith("equal: 5 tensors on 2 devices and on one; 1 of 3 steps compared")
    assert any("NaN or infinite on both: loss step 1 and" in note for note in verdict_view(found).notes)
    assert verdict_json(found, 2)["verdict"] == "equal"


def test_finite_runs_count_all_tensors() -> None:
    found = compared(net(1.0))
    assert equal_text(found, 2) == f"equal: {len(found)} tensors on 2 devices and on one"
    assert verdict_json(found, 2)["compared"] == len(found) and inf not in [c.largest for c in found]
