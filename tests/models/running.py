"""Running sums, products and the largest elements along what is split, each by a function of its name."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH, SEQ, HIDDEN, WIDE = 4, 6, 4, 12
AXES = {"x": ("batch", "seq", "feature")}


class Net(nn.Module):
    """`along` works on what the first layer leaves: [batch, seq, wide]."""

    def __init__(self, along: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(HIDDEN, WIDE), nn.Linear(WIDE, HIDDEN)
        self.along = along

    def forward(self, x: Tensor) -> Tensor:
        y = self.along(self.rise(x).tanh())
        return (self.fall(y) - x).square().mean()


def summed(x: Tensor) -> Tensor:
    return x.cumsum(1) + x.cumsum(-1)


def multiplied(x: Tensor) -> Tensor:
    return (1 + 0.1 * x).cumprod(1) * (1 + x).cumprod(-1)


def exponentials(x: Tensor) -> Tensor:
    return x.logcumsumexp(1) + x.logcumsumexp(-1)


def flat(x: Tensor) -> Tensor:
    """Along an axis of two dimensions: a part of the outer one is a run of it."""
    return x.flatten(0, 1).cumsum(0).view(x.shape) / 10


def counted(x: Tensor) -> Tensor:
    """Each element behind as many as are chosen before it, as tokens take slots of an expert."""
    chosen = (x > 0).int()
    place = (chosen.flatten(0, 1).cumsum(0) * chosen.flatten(0, 1)).view(x.shape)
    return x * (place % 5)


def best(x: Tensor) -> Tensor:
    """The largest and the smallest, and elements picked by where they are."""
    value, place = x.topk(5, -1)
    least, _ = x.topk(2, -1, largest=False)
    picked = (2 * x).gather(-1, place)
    return x * (value.square().sum(-1, keepdim=True) + least.prod(-1, keepdim=True) + picked.sum(-1, keepdim=True))


def best_of_sequence(x: Tensor) -> Tensor:
    value, place = x.topk(2, 1)
    return x + value.sum(1, keepdim=True) * place.sum(1, keepdim=True)


KINDS = (summed, multiplied, exponentials, flat, counted, best, best_of_sequence)


def _net(along: Callable[[Tensor], Tensor]) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, Any]]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(BATCH, SEQ, HIDDEN, generator=draw, dtype=torch.float64)} for _ in range(2)]
    return Net(along).double(), batches, AXES


class Packed(nn.Module):
    """Documents in a row: their numbers are a running sum of an input, of where they start."""

    def __init__(self) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(HIDDEN, WIDE), nn.Linear(WIDE, HIDDEN)

    def forward(self, x: Tensor, starts: Tensor) -> Tensor:
        document = starts.cumsum(1)
        seen = (document[:, :, None] == document[:, None]) & torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
        y = self.rise(x).tanh()
        scores = (y @ y.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        return (self.fall(scores.softmax(-1) @ y) * (1 + document[..., None]) - x).square().mean()


def net_packed() -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, Any]]:
    _, batches, axes = _net(summed)
    draw = torch.Generator().manual_seed(2)
    batches = [batch | {"starts": (torch.rand(BATCH, SEQ, generator=draw) < 0.4).long()} for batch in batches]
    return Packed().double(), batches, axes | {"starts": ("batch", "seq")}


for _kind in KINDS:
    globals()[f"net_{_kind.__name__}"] = functools.partial(_net, _kind)
