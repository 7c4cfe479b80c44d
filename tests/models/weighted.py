"""A loss that is scaled by a learned weight and by a sum over the batch: products with a partial sum, not sums."""

import torch
import torch.nn.functional as F
from torch import nn


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.frozen(self.second(torch.relu(self.first(x))))
        ratio = ((out - y) ** 2).sum() / (1 + (out**2).sum())
        return F.mse_loss(out, y) * torch.exp(-self.scale) + self.scale + ratio


def weighted() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """12 vectors of 8 numbers."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(12, 8), "y": torch.randn(12, 4)}
    return Weighted(), inputs, {"x": ("batch", "inputs"), "y": ("batch", "outputs")}
