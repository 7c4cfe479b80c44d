"""Layers that record sums over the batch in buffers: copied, added, scaled, of a product, and the loss itself."""

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Recording(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        for name in ("copied", "added", "scaled"):
            self.register_buffer(name, torch.zeros(16))
        self.register_buffer("products", torch.zeros(16, 16))
        self.register_buffer("onto", torch.zeros(16, 16))
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("totals", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = F.gelu(self.up(x))
        with torch.no_grad():
            count = (inside > 0).to(x.dtype).sum((0, 1))
            self.copied.copy_(count)
            self.added.add_(count)
            self.scaled.copy_(count / 3)
            rows = inside.flatten(0, 1)
            self.products.copy_(rows.T @ rows)
            self.onto.copy_(torch.addmm(self.onto, rows.T, rows))
            self.total.copy_(rows.sum() * 0.5)
            self.totals.add_(rows.sum())
        return x + self.down(inside)


class Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Recording(), Recording())
        self.register_buffer("last_loss", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.layers(x), x)
        self.last_loss.copy_(loss.detach())
        return loss


def recorded() -> Built:
    return Recorded(), {"x": torch.randn(8, 6, 8)}, {"x": ("batch", "seq", "feature")}
