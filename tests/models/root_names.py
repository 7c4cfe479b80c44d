"""Weights and buffers at the root of a model, called as operators and inputs are."""

import torch
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class RootNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(0.3 * torch.randn(8, 8))
        self.w = nn.Parameter(0.3 * torch.randn(8, 8))
        self.mean = nn.Buffer(torch.randn(8))
        self.linear = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x @ self.w.t() @ self.t, self.w) + self.mean * self.linear
        return ((y - y.mean(-1, keepdim=True)) ** 2).mean()


class SameName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.x).sum()


def root_names() -> Built:
    return RootNames(), {"x": torch.randn(4, 8)}, {"x": ("batch", "width")}


def same_name() -> Built:
    return SameName(), {"x": torch.randn(4, 8)}, {"x": ("batch", "width")}
