"""A residual block between layers that a plan cuts in unlike ways."""

import torch
from torch import nn


class Residual(nn.Module):
    """A residual block with a norm behind it, between two layers."""

    def __init__(self, width=16):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        x = self.a(x)
        x = self.norm(x + self.down(self.up(x).relu()))
        return self.out(x).square().mean()


def residual(batch=8, seq=4, width=16):
    torch.manual_seed(0)
    return Residual(width), {"x": torch.randn(batch, seq, width)}, {"x": ("batch", "seq", "hidden")}
