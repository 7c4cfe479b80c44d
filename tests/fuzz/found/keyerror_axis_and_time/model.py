import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 8, 6, 12, 12


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


class Aux(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.router(x).softmax(-1)
        return x * p[..., :1], (p * p).sum(-1).mean()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Grouped(12, 4, 2, True), Aux(12)])
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
    batches = [{"x": torch.randn(B, S, V, generator=g), "y": torch.randn(B, S, H, generator=g)} for _ in range(1)]
    return Net(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
