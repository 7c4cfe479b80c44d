"""Attention along sequences: causal or not, with masks, with keys that heads share, dropped, written out."""

import torch
from torch import nn
from torch.nn import functional as F

SEQ, HIDDEN, HEADS, WORDS = 13, 32, 4, 24


class Block(nn.Module):
    """`kind`: causal (by the flag), masked (by a constant mask), groups (two heads for each key), open (all see all),
    local (a mask of neighbours in front), sections (as local, and of one section that depends on the data), around (a
    mask of neighbours on both sides, with dropout), biased (a bias of each head is learned, as in T5), eager (scores,
    softmax and product written out), dropped (causal, with dropout)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, keys = kind, HEADS // 2 if kind == "groups" else HEADS
        self.keys, self.size = keys, HIDDEN // HEADS
        self.query, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.key, self.value = (nn.Linear(HIDDEN, keys * self.size) for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN)
        self.bias = nn.Parameter(torch.randn(HEADS, SEQ, SEQ)) if kind == "biased" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        q = self.heads(self.query(normal), HEADS)
        k, v = (self.heads(project(normal), self.keys) for project in (self.key, self.value))
        return x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.unflatten(-1, (count, self.size)).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.shape[-2])
        behind = places[None, :] > places[:, None]
        match self.kind:
            case "causal":
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "groups":
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            case "dropped":
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.3)
            case "masked":
                mask = torch.zeros(behind.shape).masked_fill(behind, torch.finfo(torch.float32).min)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "local":
                near = (places[None, :] - places[:, None]).abs() < 4
                return F.scaled_dot_product_attention(q, k, v, attn_mask=near & ~behind)
            case "sections":
                near, own = (places[None, :] - places[:, None]).abs() < 4, q[:, :1, :, 0].detach() > 0
                mask = (near & ~behind) & (own.unsqueeze(-1) == own.unsqueeze(-2))
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "around":
                near = (places[None, :] - places[:, None]).abs() < 4
                mask = torch.zeros(near.shape).masked_fill(~near, -torch.inf)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.3)
            case "biased":
                return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            case "eager":
                scores = q @ k.transpose(-2, -1) / self.size**0.5
                return scores.masked_fill(behind, -torch.inf).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v)


class Sequences(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def _model(kind: str) -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    inputs = {name: torch.randint(WORDS, (4, SEQ)) for name in ("tokens", "target")}
    return Sequences(kind), inputs, dict.fromkeys(inputs, ("batch", "seq"))


def causal():
    return _model("causal")


def masked():
    return _model("masked")


def groups():
    return _model("groups")


def dropped():
    return _model("dropped")


def open_():
    return _model("open")


def local():
    return _model("local")


def sections():
    return _model("sections")


def around():
    return _model("around")


def eager():
    return _model("eager")


def biased():
    return _model("biased")
