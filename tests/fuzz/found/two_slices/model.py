import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 8, 4, 6, 8


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


class Mlp(nn.Module):
    def __init__(self, hidden: int, ffn: int, bias: bool, act: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, ffn, bias=bias), nn.Linear(ffn, hidden, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(getattr(F, self.act)(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Grouped(6, 6, 2, False), Mlp(6, 12, False, "silu")])
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
        for _ in range(2)
    ]
    return Net().double(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch",)}
