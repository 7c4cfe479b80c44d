import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 4, 2, 8, 10


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Gates(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.weight = nn.Parameter(torch.randn(experts, hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.einsum("bse,bsh,ehk->bsk", self.gate(x).softmax(-1), x, self.weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([BareMlp(8, 16), Gates(8, 2)])
        self.head = nn.Linear(H, V, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = F.cross_entropy(self.head(x.mean(1)), y)
        for term in terms:
            loss = loss + term
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {"x": torch.randn(B, S, V, generator=g, dtype=torch.float64), "y": torch.randint(V, (B,), generator=g)}
        for _ in range(1)
    ]
    return Net().double(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch",)}
