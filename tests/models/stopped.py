"""Gradients that stop: at a comparison with a value of another layer, and at a weight that is used detached."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


class Stopped(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate, self.last = nn.Linear(width, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        x = F.linear(gate.tanh(), self.layers[1].inner.weight.detach())
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.last(torch.where(gate > 0, x, -x)), y)


def stopped() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 vectors of 8 numbers."""
    inputs = {"x": torch.randn(8, 8), "y": torch.randn(8, 4)}
    return Stopped(), inputs, {"x": ("batch", "inputs"), "y": ("batch", "outputs")}
