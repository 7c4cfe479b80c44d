"""Layers that use what is not theirs: a weight of another module, and a layer that is listed a second time."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int, borrowed: nn.Linear) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.borrowed = [borrowed]  # in a list it is no part of the layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.tanh(F.linear(self.inner(x), self.borrowed[0].weight)))


class Borrowed(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 4)
        layers = [Layer(width, self.first) for _ in range(2)]
        self.layers = nn.ModuleList([*layers, layers[0]])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.last(x), y)


def borrowed() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 vectors of 8 numbers."""
    inputs = {"x": torch.randn(8, 8), "y": torch.randn(8, 4)}
    return Borrowed(), inputs, {"x": ("batch", "inputs"), "y": ("batch", "outputs")}
