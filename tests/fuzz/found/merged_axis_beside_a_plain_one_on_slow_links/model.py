import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.lin(x).transpose(1, 2)).transpose(1, 2)


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(2, 2)
        self.h = nn.ModuleList([Scaled(), Batched()])
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x).flatten(2)
        for layer in self.h:
            x = layer(x)
        return (self.head(x) - y).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    batch = {
        "x": torch.randn(2, 8, 2, 2, generator=g, dtype=torch.float64),
        "y": torch.randn(2, 8, 4, generator=g, dtype=torch.float64),
    }
    return (
        Net().to(torch.float64),
        [batch],
        {"x": ("batch", "seq", "stream", "feature"), "y": ("batch", "seq", "target")},
    )
