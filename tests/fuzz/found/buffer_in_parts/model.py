import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 4, 4, 12, 12


class Grouped(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        size = hidden // heads
        self.q, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden)
        self.k, self.v = nn.Linear(hidden, groups * size), nn.Linear(hidden, groups * size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q = self.q(x).view(b, s, self.heads, -1).transpose(1, 2)
        k, v = (p(x).view(b, s, self.groups, -1).transpose(1, 2) for p in (self.k, self.v))
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(b, s, h))


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
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Grouped(12, 6, 2, True), Tracked(12)])
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
    x, y = (torch.randn(B, S, n, generator=g, dtype=torch.float64) for n in (V, H))
    return Net().double(), [{"x": x, "y": y}], {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
