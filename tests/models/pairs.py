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
