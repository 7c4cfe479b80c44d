"""Models with `varlen_attn`: documents that lie one behind the other, with their bounds as an input."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.varlen import AuxRequest, varlen_attn

TOKENS, HEADS, WIDTH = 24, 4, 16


class Net(nn.Module):
    def __init__(self, attend, kv=HEADS):
        super().__init__()
        self.attend, self.width = attend, WIDTH // HEADS
        self.embed, self.o, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)
        self.q, self.k, self.v = (nn.Linear(WIDTH, n * self.width) for n in (HEADS, kv, kv))

    def forward(self, ids, bounds, labels):
        x = self.embed(ids)
        y = self.attend(*(m(x).unflatten(-1, (-1, self.width)) for m in (self.q, self.k, self.v)), bounds)
        return F.cross_entropy(self.head(x + self.o(y.flatten(1))), labels)


def model(attend, **options):
    torch.manual_seed(0)
    ids, labels = torch.randint(16, (TOKENS,)), torch.randint(16, (TOKENS,))
    inputs = {"ids": ids, "bounds": torch.tensor([0, 5, 13, 14, 24], dtype=torch.int32), "labels": labels}
    return Net(attend, **options), inputs, {"ids": ("seq",), "bounds": ("documents",), "labels": ("seq",)}


def attending(**options):
    return lambda q, k, v, bounds: varlen_attn(q, k, v, bounds, bounds, TOKENS, TOKENS, **options)


def whole():
    return model(attending())


def causal():
    return model(attending(window_size=(-1, 0), enable_gqa=True), kv=2)


def in_a_window():
    return model(attending(window_size=(3, 1), scale=0.3))


def with_its_sum():
    def attend(q, k, v, bounds):
        y, log_sum = varlen_attn(q, k, v, bounds, bounds, TOKENS, TOKENS, return_aux=AuxRequest(lse=True))
        return y * log_sum.transpose(0, 1)[..., None].sigmoid()

    return model(attend)
