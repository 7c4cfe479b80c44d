"""One tensor of three axes, which one module makes and another one uses."""

import torch
from torch import nn


class Make(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x * self.weight)


class Use(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(x * self.weight).sum()


class Cube(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Make(), Use()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def _cube(*sizes: int):
    torch.manual_seed(0)
    return Cube(), {"x": torch.randn(sizes)}, {"x": ("i", "j", "k")}


def small():
    return _cube(48, 8, 8)


def cube():
    return _cube(256, 256, 128)


def wide():
    return _cube(768, 256, 42)
