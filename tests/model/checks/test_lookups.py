"""What a model looks up by numbers of its own has to be there."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

ERRORS = Path(__file__).parents[2] / "errors"


class Placed(nn.Module):
    """Adds a learned position to each token; `how` looks it up."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.emb, self.positions = how, nn.Embedding(9, 4), nn.Embedding(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1])
        weight = self.positions.weight
        found = {
            "embedding": lambda: self.positions(at[None]),
            "index": lambda: weight[at],
            "index_select": lambda: weight.T.index_select(1, at).T,
            "backward": lambda: weight[-1 - at],
        }
        return (self.emb(x) + found[self.how]()).square().mean()


@pytest.mark.parametrize("how", ("embedding", "index", "index_select", "backward"))
def test_rows_that_a_table_does_not_have(how: str) -> None:
    capture(model_of(Placed(how), {"x": torch.zeros(2, 6, dtype=torch.long)}))
    with pytest.raises(PlanError) as raised:
        capture(model_of(Placed(how), {"x": torch.zeros(2, 7, dtype=torch.long)}))
    assert "of `positions.weight`, which has 6 rows" in str(raised.value)


def test_its_text(golden: Callable[[Path, str], None]) -> None:
    with pytest.raises(PlanError) as raised:
        capture(model_of(Placed("embedding"), {"x": torch.zeros(2, 7, dtype=torch.long)}))
    golden(ERRORS / "E0426.err", render(raised.value.diagnostics[0]) + "\n")
