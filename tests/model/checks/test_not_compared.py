"""A model that takes too long to compare when it is captured says which of its sizes is the reason."""

import pytest
import torch

from ssdsl.model.checks import check_capture
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture


@pytest.mark.parametrize(
    ("numbers", "flops", "said"),
    [
        (10**6, 1e9, "capture: compared with the module once: loss, 2 gradients"),
        (
            10**6,
            1e6,
            "not compared with the module: its products take 0.00164 GFLOP a step; `run` and `verify` compare it",
        ),
        (10**3, 1e9, "not compared with the module: its weights and buffers are 4,128 numbers; `run` and"),
    ],
)
def test_the_reason(numbers: int, flops: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(128, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).square().mean()

    monkeypatch.setattr(check_capture, "SMALL", numbers)
    monkeypatch.setattr(check_capture, "QUICK", flops)
    model = Model("net", Net(), ({"x": torch.randn(100, 128)},), {"x": ("batch", "feature")})
    assert said in str(check_capture.check_if_small(model, capture(model)))
