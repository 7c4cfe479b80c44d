"""Losses that compare rows of a batch: two answers to each question, beside each other or in two halves, and groups."""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 8


class Pairs(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Linear(6, 12), nn.Linear(12, 1), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.last(self.first(x).relu()).squeeze(-1)
        if self.how == "groups":
            groups = score.view(-1, 4)
            return ((groups - groups.mean(1, keepdim=True)) / (1 + groups.square().sum(1, keepdim=True))).square().sum()
        better, worse = (score[0::2], score[1::2]) if self.how == "strided" else score.chunk(2)
        return -F.logsigmoid(better - worse).mean()


def net(how: str) -> object:
    return Pairs(how), {"x": torch.randn(ROWS, 6)}, {"x": ("batch", "in")}


def strided() -> object:
    return net("strided")


def halves() -> object:
    return net("halves")


def groups() -> object:
    return net("groups")


class Alternating(nn.Module):
    """A gate and an input that alternate in one axis, as those of gpt-oss's experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.up(x)
        return self.down(both[..., ::2].sigmoid() * (both[..., 1::2] + 1)).square().mean()


def alternating() -> object:
    return Alternating(), {"x": torch.randn(ROWS, 6)}, {"x": ("batch", "in")}
