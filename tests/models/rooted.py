"""A model whose own forward has activations, residuals and the division of the loss, beside its modules."""

import torch
import torch.nn.functional as F
from torch import nn


class Rooted(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.third, self.fourth = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + self.second(F.gelu(self.first(x)))
        x = x + self.fourth(F.gelu(self.third(x)))
        return ((x - y) ** 2).sum() / 64


def rooted() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    return Rooted(), {"x": x, "y": y}, {"x": ("batch", "width"), "y": ("batch", "width")}


class Judged(nn.Module):
    """Two judges of one input, whose difference the model itself takes; one judge's answer lacks an axis."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.whole, self.each = nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole, each = self.whole(x)[:, 0], self.each(x)
        return (each - whole.unsqueeze(1)).square().sum()


def judged() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return Judged(), {"x": torch.randn(8, 16)}, {"x": ("batch", "width")}
