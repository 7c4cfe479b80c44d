"""Numbers are drawn around what a product gives, of which each part in time has an addend."""

import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 6, 5


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.lin(x).tanh())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.twice, self.head = nn.Embedding(V, H), Twice(), nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.twice(self.front(x))
        loss = (self.head(x) - y).square().mean() + 0.1 * torch.normal(x, 0.5).mean()
        return loss + torch.normal(self.head(x), 0.1).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(V, (B, S), generator=g)
    y = torch.randn(B, S, H, generator=g, dtype=torch.float64)
    return Net().to(torch.float64), [{"x": x, "y": y}], {"x": ("batch", "seq"), "y": ("batch", "seq", "target")}
