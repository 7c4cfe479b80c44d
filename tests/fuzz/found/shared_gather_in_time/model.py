"""Two readers share a gather, and each of their parts in time gives a part of its gradient."""

import torch
from torch import Tensor, nn

B, S, H, V = 2, 6, 12, 2
A, C = 2, 2


class Routed(nn.Module):
    """Each token goes to some of the experts, through two products."""

    def __init__(self, hidden: int, experts: int, top: int) -> None:
        super().__init__()
        self.top, self.gate = top, nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, 2 * hidden) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        score, chosen = self.gate(x).softmax(-1).topk(self.top, dim=-1)
        rows = x.unsqueeze(2).expand(-1, -1, self.top, -1).flatten(0, 2)
        inner = torch.ops.ssdsl.routed_mm(rows, self.up, chosen.flatten()).tanh()
        made = torch.ops.ssdsl.routed_mm(inner, self.down, chosen.flatten()).view(*chosen.shape, -1)
        return x + (made * score.unsqueeze(-1)).sum(2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Routed(12, 6, 2)])
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
        loss = loss / (1 + x.square().mean())
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {
            "x": torch.randn(B, S, V, generator=g, dtype=torch.float64),
            "y": torch.randn(B, S, H, generator=g, dtype=torch.float64),
        }
        for _ in range(1)
    ]
    return Net().to(torch.float64), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
