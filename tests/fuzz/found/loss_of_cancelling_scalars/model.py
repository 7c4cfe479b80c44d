import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 9, 4, 8, 6


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([BareMlp(8, 8), BareMlp(8, 32)])
        self.head = nn.Linear(H, V, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())
        for term in terms:
            loss = loss + term
        loss = 1 - 0.5 * loss
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(B, S, V, generator=g, dtype=torch.float64)
    y = torch.where(torch.rand(B, S, generator=g) < 0.3, -100, torch.randint(V, (B, S), generator=g))
    axes = {"x": ("batch", "seq", "feature"), "y": ("batch", "seq")}
    return Net().double(), {"x": x, "y": y}, axes
