"""One tensor of three axes, which one module makes and another one uses."""

import torch
from torch import nn


class Make(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x * self.weight)


class Use(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(x * self.weight).sum()


class Cube(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Make(), Use()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def cube():
    torch.manual_seed(0)
    return Cube(), {"x": torch.randn(48, 8, 8)}, {"x": ("i", "j", "k")}
