import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 8, 2


class Tracked(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x * 0.9


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Embedding(V, H)
        self.h = nn.ModuleList([Tracked(8)])
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
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {"x": torch.randint(V, (B, S), generator=g), "y": torch.randn(B, S, H, generator=g, dtype=torch.float64)}
        for _ in range(1)
    ]
    return Net().double(), batches, {"x": ("batch", "seq"), "y": ("batch", "seq", "target")}
