import torch
from torch import Tensor, nn

B, S, F = 2, 4, 3


class Net(nn.Module):
    """A penalty reads the weights of all layers, on the devices of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(F, F), nn.Linear(F, F)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        penalty = sum(w.square().sum() for w in self.parameters())
        return (self.head(self.front(x)) - y).square().mean() + 0.01 * penalty


def net():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(B, S, F, generator=g, dtype=torch.float64) for _ in range(2))
    return Net().double(), [{"x": x, "y": y}], {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
