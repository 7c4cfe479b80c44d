"""All that a checkpoint has to do with: batch norm, frozen weights, a tied weight, a weight and a buffer that idle."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.norm, self.narrow = nn.Linear(width, 24), nn.BatchNorm1d(24), nn.Linear(24, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.relu(self.norm(self.wide(x))))


class Mixed(nn.Module):
    """The second block is frozen, and the last layer's weight is the first's."""

    def __init__(self, width: int = 12, classes: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.blocks[1].requires_grad_(False)
        self.last = nn.Linear(width, classes)
        self.last.weight = self.first.weight
        self.idle = nn.Parameter(torch.randn(3))
        self.register_buffer("idle_buffer", torch.randn(2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.last(x), labels)


def mixed() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """24 vectors of 12 numbers, each of one of 12 classes."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(24, 12), "labels": torch.randint(0, 12, (24,))}
    return Mixed(), inputs, {"x": ("batch", "feature"), "labels": ("batch",)}
