"""Dropout of everything and of nothing: neither takes a number, and both are split."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.all = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(1.0)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        empty = F.dropout(x[:, :0], 0.5)
        h = self.first(torch.cat([empty, F.dropout(x, 0.3)], -1))
        return F.cross_entropy(self.head(h + self.all(h)), y) + empty.sum() + torch.randn(0).sum()


def net() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return Net(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}
