"""A layer with gradients a hundred million times smaller than those of the rest: a mistake in them is easy to miss."""

import torch
from torch import nn


class Faint(nn.Module):
    """Two layers; what comes from the second is nearly nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.faint = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.loud(x).tanh()
        return ((h + 1e-8 * self.faint(x)) ** 2).mean()


def faint() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 vectors of 16 numbers."""
    torch.manual_seed(0)
    return Faint(), {"x": torch.randn(8, 16)}, {"x": ("batch", "feature")}
