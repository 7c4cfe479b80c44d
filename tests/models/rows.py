"""Norms of rows, cut along what they normalise."""

import torch
from torch import nn


class Rows(nn.Module):
    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.norms, self.out = nn.ModuleList(norms), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = nn.functional.silu(norm(x)) + x
        return self.out(x).square().mean()


def _rows(*norms: nn.Module, sizes: tuple[int, ...] = (4, 6), axes: tuple[str, ...] = ("batch", "hidden")):
    torch.manual_seed(0)
    for norm in norms:
        for weight in norm.parameters():
            nn.init.uniform_(weight, 0.5, 1.5)
    return Rows(*norms), {"x": torch.randn(sizes)}, {"x": axes}


def layers():
    return _rows(nn.LayerNorm(6), nn.LayerNorm(6, bias=False), nn.LayerNorm(6, elementwise_affine=False))


def squares():
    return _rows(nn.RMSNorm(6), nn.RMSNorm(6, eps=1e-3), nn.RMSNorm(6, elementwise_affine=False))


def two_axes():
    return _rows(nn.LayerNorm((4, 6)), nn.RMSNorm((4, 6)), sizes=(2, 4, 6), axes=("batch", "rows", "hidden"))
