"""Attention whose heads of queries share heads of keys and values, in the ways that models write it."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, WORDS, HIDDEN, SIZE = 8, 8, 48, 32, 4
Batch = dict[str, torch.Tensor]


class Attention(nn.Module):
    """`how` the keys get to all heads: by the operator itself, repeated one by one, or by `repeat_kv` of
    transformers."""

    def __init__(self, how: str, heads: int, keys: int) -> None:
        super().__init__()
        self.how, self.heads, self.keys = how, heads, keys
        self.q, self.o = nn.Linear(HIDDEN, heads * SIZE), nn.Linear(heads * SIZE, HIDDEN, bias=False)
        self.k, self.v = (nn.Linear(HIDDEN, keys * SIZE) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (self.for_all(x) for x in (self.scale * k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.how == "given")
        return self.o(found.transpose(1, 2).flatten(2))

    def for_all(self, x: torch.Tensor) -> torch.Tensor:
        each = self.heads // self.keys
        match self.how:
            case "interleaved":
                return x.repeat_interleave(each, 1)
            case "expanded":
                b, h, s, d = x.shape
                return x[:, :, None].expand(b, h, each, s, d).reshape(b, h * each, s, d)
        return x


class Net(nn.Module):
    def __init__(self, *layers: Attention) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, HIDDEN), nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in layers)
        self.rise, self.fall = nn.Linear(HIDDEN, 64, bias=False), nn.Linear(64, HIDDEN, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        x = x + self.fall(F.silu(self.rise(x)))
        return F.cross_entropy((x @ self.words.weight.T).flatten(0, 1), labels.flatten())


def net(*layers: tuple[str, int, int]) -> tuple[nn.Module, Batch, dict[str, tuple[str, ...]]]:
    ids, labels = torch.randint(WORDS, (2, BATCH, SEQ))
    axes = ("batch", "seq")
    return Net(*(Attention(*one) for one in layers)), {"ids": ids, "labels": labels}, {"ids": axes, "labels": axes}


def given() -> object:
    return net(*[("given", 8, 2)] * 2)


def interleaved() -> object:
    return net(*[("interleaved", 8, 2)] * 2)


def expanded() -> object:
    return net(*[("expanded", 8, 2)] * 2)


def twelve() -> object:
    """Six heads of keys: four devices take two heads each, and two of the four queries of each."""
    return net(("given", 24, 6))


def unlike() -> object:
    """Layers with two and with four heads of keys: eight devices are two times two times two."""
    return net(("given", 8, 2), ("given", 8, 4))


def apart() -> object:
    """Six devices would be two times three for one layer, and three times two for the other."""
    return net(("given", 6, 2), ("given", 6, 3))
