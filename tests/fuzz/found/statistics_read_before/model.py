"""Running statistics that are read before the batch norm changes them, and again by recomputation."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(x) * (1 + self.norm.running_var)
        return F.cross_entropy(self.head(self.norm(h.tanh())), y)


def net() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return Net(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}
