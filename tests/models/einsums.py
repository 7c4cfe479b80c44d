"""A transformer written with einsum alone: no linear layer, no attention kernel, the loss a mean squared error."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, size: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(width, heads, size) * 0.1) for _ in range(3))
        self.out = nn.Parameter(torch.randn(heads, size, width) * 0.1)
        self.rise, self.fall = (
            nn.Parameter(torch.randn(width, inner) * 0.1),
            nn.Parameter(torch.randn(inner, width) * 0.1),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (torch.einsum("bsd,dhk->bshk", h, w) for w in (self.query, self.key, self.value))
        scores = torch.einsum("bshk,bthk->bhst", q, k).softmax(-1)
        x = x + torch.einsum("bhst,bthk,hkd->bsd", scores, v, self.out)
        return x + torch.einsum("bsf,fd->bsd", torch.einsum("bsd,df->bsf", x, self.rise).relu(), self.fall)


class Einsums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(16, 4, 4, 32) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def einsums() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 sequences of 6 vectors of 16 numbers."""
    torch.manual_seed(0)
    axes = ("batch", "seq", "hidden")
    return Einsums(), {"x": torch.randn(8, 6, 16), "y": torch.randn(8, 6, 16)}, {"x": axes, "y": axes}
