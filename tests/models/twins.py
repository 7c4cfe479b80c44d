"""Products that share: two of equal numbers, and two with the same bias."""

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


class SharedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(6, 4, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        two = nn.functional.linear(y, self.two.weight, self.one.bias)
        return (one.square() * two.square()).sum()


def shared_bias() -> Built:
    axes = {"x": ("batch", "wide"), "y": ("batch", "narrow")}
    return SharedBias(), {"x": torch.randn(8, 8), "y": torch.randn(8, 6)}, axes


def net() -> Built:
    return Twins(twice=True), {"x": torch.randn(8, 4)}, {"x": ("batch", "in")}


def net_alone() -> Built:
    return Twins(twice=False), {"x": torch.randn(8, 4)}, {"x": ("batch", "in")}
