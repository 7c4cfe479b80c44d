import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 2, 12, 8, 2
A, C = 2, 2


class Grouped(nn.Module):
    """Fused attention: `open`, `causal` by its flag or `masked` by a constant, of neighbours, biased, dropped."""

    def __init__(self, hidden: int, heads: int, groups: int, seq: int, kind: str) -> None:
        super().__init__()
        self.heads, self.groups, self.kind = heads, groups, kind
        size = hidden // heads
        self.q, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden)
        self.k, self.v = nn.Linear(hidden, groups * size), nn.Linear(hidden, groups * size, bias=False)
        self.bias = nn.Parameter(torch.randn(heads, seq, seq)) if kind == "biased" else None

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q = self.q(x).view(b, s, self.heads, -1).transpose(1, 2)
        k, v = (p(x).view(b, s, self.groups, -1).transpose(1, 2) for p in (self.k, self.v))
        if self.kind != "open":
            k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        places = torch.arange(s, device=x.device)
        ahead = places[:, None] - places[None, :]
        match self.kind:
            case "causal":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "masked":
                mask = torch.zeros_like(ahead, dtype=x.dtype).masked_fill(ahead < 0, torch.finfo(x.dtype).min)
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "near":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=(ahead >= 0) & (ahead < 3))
            case "biased":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            case "dropped":
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
            case _:
                y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(b, s, h))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Grouped(8, 4, 2, 12, "causal")])
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
            "x": torch.randn(B, S, V, generator=g, dtype=torch.float64),
            "y": torch.randn(B, S, H, generator=g, dtype=torch.float64),
        }
        for _ in range(1)
    ]
    return Net().to(torch.float64), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
