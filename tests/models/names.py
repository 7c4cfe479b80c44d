"""Weights whose names are those of other things in a program, or no names at all."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.ParameterList([torch.randn(2 * width, width) / 4, torch.randn(2 * width)])  # "0" and "1"
        self.tp = nn.Parameter(torch.randn(width, 2 * width) / 4)
        self.first = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.linear(F.gelu(F.linear(x, self.up[0], self.up[1])), self.tp, self.first)


class Names(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers(x), x)


def names() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 vectors of 8 numbers."""
    return Names(), {"x": torch.randn(8, 8)}, {"x": ("batch", "width")}
