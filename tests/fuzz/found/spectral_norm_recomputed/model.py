"""A spectral norm's vectors, of which one is only written: they change, and recomputation reads the old ones."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(6, 2)
        self.middle = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.middle(self.first(x)).tanh()), y)


def net() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return Net(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}
