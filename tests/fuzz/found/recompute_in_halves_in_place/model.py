import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 4, 2


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Embedding(V, H)
        self.h = nn.ModuleList([BareMlp(4, 8)])
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
        {
            "x": torch.randint(V, (B, S), generator=g),
            "y": torch.randn(B, S, H, generator=g, dtype=torch.float64),
        }
    ]
    return Net().double(), batches, {"x": ("batch", "seq"), "y": ("batch", "seq", "target")}
