"""Two products whose rows a plan cuts inside of heads: each part has every second row of the weight."""

import torch
from torch import Tensor, nn


class InnerHeads(nn.Module):
    """Products of queries and keys with heads of two features, for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.front(x)
        q, k = (p(x).view(4, 6, 4, 2) for p in (self.q, self.k))
        return (q * k).sum(-1).square().mean()


def net() -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """The module, its inputs and their axes."""
    torch.manual_seed(0)
    return InnerHeads().double(), {"x": torch.randn(4, 6, 8, dtype=torch.float64)}, {"x": ("batch", "seq", "wide")}
