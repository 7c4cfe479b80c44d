"""A forward that half precision breaks is told apart from one that fails by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import computing
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

ERRORS = Path(__file__).parent.parent.parent / "errors"


class Angles(nn.Module):
    """Makes numbers in float32, as RoPE does."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc, self.width = nn.Linear(4, 4), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x * torch.linspace(0, 1, self.width)).sum()


class Attends(Angles):
    """Mixes both in a kernel that looks at their types, already without numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x * torch.linspace(0, 1, self.width)
        return nn.functional.scaled_dot_product_attention(q, q, self.fc(x)).sum()


def failure(module: nn.Module, precision: str | None) -> str:
    model = replace(model_of(module, torch.randn(8, 4)), precision=precision)
    with pytest.raises(PlanError) as caught:
        check_capture(computing(model), capture(computing(model)))
    return "\n".join(map(render, caught.value.diagnostics))


def test_the_precision_is_named_where_it_is_the_cause(golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / "E0347.err", "".join(failure(m, "bf16") + "\n" for m in (Attends(), Angles())))


def test_it_is_not_named_where_the_module_fails_in_float32_as_well() -> None:
    assert "E0340" in failure(Angles(5), "bf16") and "E0340" in failure(Angles(5), None)


def test_under_autocast_it_runs() -> None:
    graph = capture(model_of(Angles(), torch.randn(8, 4), autocast=torch.bfloat16))
    assert {graph.values[o.outputs[0].value].dtype for o in graph.operators if o.kind == "linear"} == {"bfloat16"}
