"""Masks that say what `is_causal` says, and masks that say more, short and long."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssdsl.model.load.model import Model
from ssdsl.model.rewrite.mask_numbers import LONGEST
from ssdsl.model.trace import capture
from tests.captured import graph_of

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of the rows [seq, 1] and the columns [seq]
CAUSAL: dict[str, Mask] = {
    "at most": lambda row, column: column <= row,
    "at least": lambda row, column: row >= column,
    "and all": lambda row, column: torch.ones((), dtype=torch.bool) & (column <= row),
    "of a batch": lambda row, column: (column <= row).expand(1, 1, -1, -1),
}
OTHER: dict[str, Mask] = {
    "before": lambda row, column: column < row,
    "the other way": lambda row, column: column >= row,
    "but for a row": lambda row, column: (column <= row) & (row != 5),
    "but for a column": lambda row, column: (column != 5) & (column <= row),
    "in a window": lambda row, column: (column <= row) & (row - column < 50),
    "to the next": lambda row, column: column <= row + 1,
}
LENGTHS = (64, 1200, LONGEST + 8)  # all numbers of a constant are known, rows of it, what it compares


class Attends(nn.Module):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask, self.up = mask, nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, at = self.up(x)[:, None], torch.arange(x.shape[1])
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.mask(at[:, None], at)).sum()


def operands(mask: Mask, seq: int) -> int:
    """How many tensors attention reads: with a mask, one more."""
    model = Model("attends", Attends(mask), ({"x": torch.zeros(1, seq, 2)},), {"x": ("batch", "seq", "hidden")})
    (attention,) = (o for o in capture(model).operators if "attention" in o.kind)
    return len(attention.inputs)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_the_flag(name: str, seq: int) -> None:
    assert operands(CAUSAL[name], seq) == 3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("name", OTHER)
def test_a_mask_that_says_more_stays(name: str, seq: int) -> None:
    assert operands(OTHER[name], seq) == 4


def test_positions_of_many_samples_are_known() -> None:
    """Llama's mask also compares where documents begin, which it finds for each sample."""
    graph = graph_of("llama:tiny,layers=1,seq=1024,batch=1025", meta=True)
    (attention,) = (o for o in graph.operators if "attention" in o.kind)
    assert len(attention.inputs) == 3


NOTHING: dict[str, Mask] = {
    "true": lambda row, column: (row >= 0) & (column >= 0),
    "zeros": lambda row, column: torch.zeros(1, 1, len(row), len(column)),
    "a choice": lambda row, column: torch.where((row >= 0) & (column >= 0), torch.zeros(1, 1, 1, 1), -9e9),
}


@pytest.mark.parametrize("seq", [64, 1200])
@pytest.mark.parametrize("name", NOTHING)
def test_a_mask_that_hides_nothing_is_left_out(name: str, seq: int) -> None:
    assert operands(NOTHING[name], seq) == 3


@pytest.mark.parametrize(("last", "batches"), [(-1, 1), (0, 2)])
def test_a_bias_that_is_chosen_everywhere_has_no_batch(last: int, batches: int) -> None:
    """T5's: positions learned, and a mask of a batch that hides nothing; here the other one hides the first key."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.bias = nn.Linear(2, 2), nn.Parameter(torch.randn(1, 1, 16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, seen = self.up(x)[:, None], torch.arange(16).expand(2, 1, 16, -1) > last
            return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.where(seen, self.bias, -9e9)).sum()

    model = Model("biased", Biased(), ({"x": torch.randn(2, 16, 2)},), {"x": ("batch", "seq", "hidden")})
    found = capture(model)
    (attention,) = (o for o in found.operators if "attention" in o.kind)
    assert found.values[attention.inputs[3].value].shape[0] == batches


@pytest.mark.parametrize("start", ["input", "constant"])
def test_a_mask_is_followed_once_however_often_its_branches_meet(start: str) -> None:
    """Each sum of a value and itself doubles the ways back to the first; a row of them is no deeper a stack."""

    def doubled(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        at = row if start == "constant" else row + 0 * hidden[0]
        for _ in range(600):
            at = (at + at) // 2
        return column <= at

    class Doubles(Attends):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden[:] = [x[0, :, :1].long()]
            return super().forward(x)

    hidden: list[torch.Tensor] = []
    model = Model("doubles", Doubles(doubled), ({"x": torch.zeros(1, 64, 2)},), {"x": ("batch", "seq", "hidden")})
    (attention,) = (o for o in capture(model).operators if "attention" in o.kind)
    assert len(attention.inputs) == (3 if start == "constant" else 4)
