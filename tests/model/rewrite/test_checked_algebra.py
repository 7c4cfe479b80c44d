"""Linear algebra without checks gives torch's results, and NaN where torch raises."""

from typing import Any

import pytest
import torch
from torch import nn

from bench.fuzz.trial import try_plan
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.model.rewrite.checked_algebra import UNCHECKED
from ssdsl.runtime.options import Training


def _results(found: Any) -> tuple[torch.Tensor, ...]:
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


@pytest.mark.parametrize("call", UNCHECKED, ids=str)
def test_only_a_matrix_that_fails_is_nan(call: Any) -> None:
    x = torch.eye(3) * 6 + torch.rand(4, 2, 3, 3)
    more = [(torch.rand(4, 2, 3, 2),), (torch.rand(4, 2, 3),)] if "solve" in str(call) else [()]
    for given in more:
        whole = _results(call(x, *given))
        torch.testing.assert_close(_results(UNCHECKED[call](x, *given)), whole)
        wrong = x.clone()
        wrong[1, 0] = 0
        with pytest.raises(RuntimeError):
            call(wrong, *given)
        marked = _results(UNCHECKED[call](wrong, *given))[0]
        assert marked[1, 0].isnan().all()
        assert marked.isnan().flatten(2).any(2).sum() == 1


class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = x.mT @ x + torch.eye(4) + self.fc.weight
        return self.fc(x).square().mean() + torch.linalg.inv(spread).square().mean()


def test_a_model_that_solves_trains_as_on_one_device() -> None:
    torch.manual_seed(0)
    model = model_of(Orthogonal(), {"x": torch.randn(4, 6, 4)}, {"x": ("batch", "row", "feature")})
    text = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"
    outcome = try_plan(model, capture(model), text, Training(2, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text
