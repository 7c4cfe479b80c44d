"""Attention over a sequence, by hand and fused."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(h, -1))
        weights = (q @ k.transpose(-1, -2) / (h // self.heads) ** 0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, s, h))


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
