import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(2, 4)
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x).flatten(0, 1)) - y.flatten(0, 1)).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(4, 2, 8, size, generator=g, dtype=torch.float64) for name, size in (("x", 2), ("y", 4))}
    axes = ("batch", "sample", "seq")
    return Net().to(torch.float64), [batch], {"x": (*axes, "feature"), "y": (*axes, "target")}
