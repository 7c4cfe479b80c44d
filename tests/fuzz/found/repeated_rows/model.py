"""Rows that an index repeats, as a mixture does with its tokens: they are split with the batch."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(x)[torch.arange(x.shape[0]).repeat_interleave(2)]
        h = F.dropout(h, 0.2).view(x.shape[0], 2, 8).sum(1)
        return F.cross_entropy(self.head(h), y)


def net() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return Net(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}
