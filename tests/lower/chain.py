"""A chain of linear layers, as a user's model: small enough to compile many plans."""

import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().sum()


def chain() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return Chain(), {"x": torch.randn(16, 4)}, {"x": ("batch", "feature")}
