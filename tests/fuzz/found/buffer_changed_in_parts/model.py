"""A moving average that all micro-batches read, and recomputation again: it changes behind the step."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 2)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.second(F.dropout(self.first(x - self.centre), 0.2).tanh() * 2)
        with torch.no_grad():
            self.centre.copy_(0.5 * self.centre + x.mean(0))
        return F.cross_entropy(self.head(h), y)


def net() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return Net(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}
