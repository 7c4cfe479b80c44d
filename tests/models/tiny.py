"""The smallest models on which the diagnostics of lowering show."""

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
AXES = {"x": ("batch", "width")}


class Chain(nn.Module):
    """Two layers; with `shared`, both are the same; with `norm`, batch statistics stand between them."""

    def __init__(self, *, shared: bool = False, norm: bool = False) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        second = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        if shared:
            second[0].weight = first[0].weight
        self.layers = nn.ModuleList([first, second])
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers[1](self.norm(self.layers[0](x))), x)


def chain() -> Built:
    return Chain(), {"x": torch.randn(8, 4)}, AXES


def chain_shared() -> Built:
    return Chain(shared=True), {"x": torch.randn(8, 4)}, AXES


class Flat(nn.Module):
    """Batch and sequence are one axis in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x.reshape(-1, 4)).square().mean()


class Counting(nn.Module):
    """Keeps the sum of a batch in a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        self.seen.copy_(y.detach().sum(0))
        return y.square().mean()


def flat() -> Built:
    return Flat(), {"x": torch.randn(4, 6, 4)}, {"x": ("batch", "seq", "width")}


def counting() -> Built:
    return Counting(), {"x": torch.randn(8, 4)}, AXES


def chain_norm() -> Built:
    return Chain(norm=True), {"x": torch.randn(8, 4)}, AXES
