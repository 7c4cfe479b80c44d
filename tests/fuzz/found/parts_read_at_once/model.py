import torch
from torch import Tensor, nn

B, F = 4, 6


class Net(nn.Module):
    """Two products."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(F, F), nn.Linear(F, F)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x)) - y).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(B, F, generator=g, dtype=torch.float64) for _ in range(2))
    return Net().double(), {"x": x, "y": y}
