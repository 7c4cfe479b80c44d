"""A product that a model computes twice: two results of equal numbers, of which one is squared."""

import torch
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Twins(nn.Module):
    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.into, self.back, self.twice = nn.Linear(4, 8), nn.Linear(8, 4, bias=False), twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.into(x).relu()
        again = self.back(wide) if self.twice else 0.5
        return (self.back(wide).square() * again).sum()


def net() -> Built:
    return Twins(twice=True), {"x": torch.randn(8, 4)}, {"x": ("batch", "in")}


def net_alone() -> Built:
    return Twins(twice=False), {"x": torch.randn(8, 4)}, {"x": ("batch", "in")}
