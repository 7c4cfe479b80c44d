"""A model that recycles, as AlphaFold does: its trunk runs three times, and only the last run learns."""

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Recycle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, start: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return start + self.norm(state)


class Recycling(nn.Module):
    def __init__(self, width: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.recycle = Recycle(width)
        self.trunk = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.embed(x)
        with torch.no_grad():
            state = self.trunk(start)
            state = self.trunk(self.recycle(start, state))
        state = self.trunk(self.recycle(start, state))
        return F.mse_loss(self.head(state), x)


def recycling() -> Built:
    return Recycling(), {"x": torch.randn(16, 8)}, {"x": ("batch", "width")}


def recycling_deep() -> Built:
    return Recycling(width=8, layers=8), {"x": torch.randn(64, 8)}, {"x": ("batch", "width")}
