import torch
from torch import Tensor, nn

B, S, H, V = 6, 4, 8, 6


class Recurrent(nn.Module):
    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Embedding(V, H)
        self.h = nn.ModuleList([Recurrent(8, "LSTM")])
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
    batches = [{"x": torch.randint(V, (B, S), generator=g), "y": torch.randn(B, S, H, generator=g)} for _ in range(1)]
    return Net(), batches, {"x": ("batch", "seq"), "y": ("batch", "seq", "target")}
