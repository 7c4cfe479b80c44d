"""Gradients a hundred million times smaller than those of the rest, in which a mistake is easy to miss; and a gradient
of zero but for rounding."""

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


class Critic(nn.Module):
    """A critic of real and fake samples in one batch: behind `middle` all is linear, so the gradient of its bias is a
    sum of equal numbers, half of them negative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 24), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        return (self.last(self.middle(self.first(x).relu())).squeeze(1) * sign).mean()


def critic() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """7 samples of each."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(14, 6), "sign": torch.tensor([1.0, -1.0]).repeat_interleave(7)}
    return Critic(), batch, {"x": ("batch", "feature"), "sign": ("batch",)}
