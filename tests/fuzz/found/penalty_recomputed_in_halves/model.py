import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 12, 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([])
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
        loss = loss + 0.01 * self.head.weight.square().sum()
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(B, S, V, generator=g), torch.randn(B, S, H, generator=g)
    axes = {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
    return Net().double(), {"x": x.double(), "y": y.double()}, axes
