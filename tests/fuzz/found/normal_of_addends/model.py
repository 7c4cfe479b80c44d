"""Numbers are drawn around what a product gives, of which each part in time has an addend."""

import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 6, 2
A, C = 2, 2


class Twice(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.lin(x).tanh())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Embedding(V, H)
        self.h = nn.ModuleList([Twice(6)])
        self.head = nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = (self.head(x) - y).square().mean()
        for term in terms:
            loss = loss + term
        loss = loss + 0.1 * torch.normal(x, 0.5).mean() + torch.normal(self.head(x), 0.1).square().mean()
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(V, (B, S), generator=g)
    y = torch.randn(B, S, H, generator=g, dtype=torch.float64)
    dims = {"x": ("batch", "seq"), "y": ("batch", "seq", "target")}
    return Net().to(torch.float64), [{"x": x, "y": y}], dims
