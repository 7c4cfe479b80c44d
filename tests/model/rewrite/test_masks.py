"""Masks that say what `is_causal` says, and masks that say more, short and long."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.model.ops.reader import argument
from ssdsl.model.rewrite.mask_numbers import LONGEST
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


@pytest.mark.thinned(9)
@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_the_flag(name: str, seq: int) -> None:
    assert operands(CAUSAL[name], seq) == 3


@pytest.mark.thinned(9)
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


BANDS: dict[str, tuple[Mask, tuple[int, int]]] = {  # the keys that queries see before their own, and behind
    "a window": (lambda row, column: (column <= row) & (column > row - 50), (49, 0)),
    "by a difference": (lambda row, column: (row - column < 50) & (row - column >= 0), (49, 0)),
    "on both sides": (lambda row, column: (row - column).abs() <= 8, (8, 8)),
    "both sides, the other way": (lambda row, column: ~((column - row).abs() > 8), (8, 8)),
    "to the next": (lambda row, column: column <= row + 1, (63, 1)),
    "one of two": (lambda row, column: ((row - column).abs() < 3) | ((row >= column) & (row < column + 9)), (8, 2)),
    "scores": (lambda row, column: torch.where((row - column).abs() < 3, 0.0, -torch.inf), (2, 2)),
    "filled": (lambda row, column: torch.zeros(1, 1).masked_fill((row - column).abs() >= 3, -torch.inf), (2, 2)),
    "of a batch": (lambda row, column: ((row - column).abs() < 3).expand(1, 1, -1, -1), (2, 2)),
    "of two batches": (
        lambda row, column: ((row - column).abs() < torch.tensor([3, 5])[:, None, None])[:, None],
        (4, 4),
    ),
    "by blocks": (lambda row, column: row // 4 == column // 4, (3, 3)),
}
BY_DATA: dict[
    str, tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, int] | None]
] = {
    "and": (lambda near, here, same: near & same, (2, 1)),
    "behind an axis": (lambda near, here, same: (near & same[0]).unsqueeze(0).unsqueeze(1), (2, 1)),
    "chosen": (lambda near, here, same: torch.where(same & near, 0.0, -torch.inf), (2, 1)),
    "a bias": (lambda near, here, same: torch.where(near, same.float(), -torch.inf), (2, 1)),
    "added": (lambda near, here, same: torch.where(near, 0.0, -torch.inf) + same.float(), (2, 1)),
    "or": (lambda near, here, same: near | same, None),
    "not": (lambda near, here, same: ~(~near | same), (2, 1)),
    "moved": (lambda near, here, same: (near & same)[..., ::2, :].repeat_interleave(2, -2), None),
    "the least number": (lambda near, here, same: torch.where(same & near, 0.0, torch.finfo(torch.float32).min), None),
}


def banded(mask: Mask, seq: int) -> tuple[int, int] | None:
    """The band of attention with a mask."""
    model = Model("attends", Attends(mask), ({"x": torch.zeros(1, seq, 2)},), {"x": ("batch", "seq", "hidden")})
    (attention,) = (o for o in capture(model).operators if "attention" in o.kind)
    return argument(attention, "band") if attention.target == "ssdsl::banded_attention" else None


@pytest.mark.parametrize("name", BANDS)
def test_a_band_is_found(name: str) -> None:
    mask, expected = BANDS[name]
    assert banded(mask, 64) == expected


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", [name for name in BANDS if name not in ("of two batches", "by blocks")])
def test_a_long_band_is_what_positions_say(name: str) -> None:
    mask, (before, after) = BANDS[name]
    assert banded(mask, LONGEST + 8) == (LONGEST + 7 if before == 63 else before, after)


@pytest.mark.parametrize("name", BY_DATA)
def test_the_band_of_a_mask_that_depends_on_data(name: str) -> None:
    """It holds for any data; the least number hides nothing where a query may see no key."""

    class ByData(Attends):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, at, own = self.up(x)[:, None], torch.arange(16), x[:, :, 0] > 0
            near, same = (at <= at[:, None] + 1) & (at > at[:, None] - 3), own[:, :, None] == own[:, None, :]
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask(near, at, same)).sum()

    mask, expected = BY_DATA[name]
    model = Model(
        "by_data", ByData(lambda row, column: row), ({"x": torch.randn(1, 16, 2)},), {"x": ("b", "seq", "hidden")}
    )
    (attention,) = (o for o in capture(model).operators if "attention" in o.kind)
    assert (argument(attention, "band") if attention.target == "ssdsl::banded_attention" else None) == expected
