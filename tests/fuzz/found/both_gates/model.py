import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 6, 2, 6, 12


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
        self.h = nn.ModuleList([Gates(6, 4)])
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
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {
            "x": torch.randn(B, S, V, generator=g),
            "y": torch.where(torch.rand(B, S, generator=g) < 0.3, -100, torch.randint(V, (B, S), generator=g)),
        }
        for _ in range(2)
    ]
    return Net(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq")}
