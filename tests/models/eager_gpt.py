"""A GPT as Korthikanti et al. (2022, arXiv 2205.05198, section 4) count its activations: attention in plain operators.

Queries, keys and values come from one linear layer; scores, softmax, dropout and the sum over values are operators of
their own; the causal mask is added, which keeps nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).view(b, s, 3, self.heads, -1).unbind(2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        return F.dropout(self.out(mixed), self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.rise = nn.Linear(hidden, 4 * hidden)
        self.fall = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.fall(F.gelu(self.rise(x))), self.dropout, self.training)


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads, dropout)
        self.norm2, self.mlp = nn.LayerNorm(hidden), Mlp(hidden, dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class EagerGpt(nn.Module):
    """The next token's cross entropy; the embedding is also the classifier."""

    def __init__(self, layers: int, hidden: int, heads: int, seq: int, vocab: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, hidden), nn.Parameter(torch.zeros(seq, hidden))
        self.layers = nn.ModuleList(Layer(hidden, heads, dropout) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(hidden), dropout
        self.register_buffer("mask", torch.full((seq, seq), float("-inf")).triu(1))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.words(tokens) + self.positions, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, self.mask)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def built(module: EagerGpt, batch: int, dtype: torch.dtype) -> Built:
    shape = (batch, len(module.positions))
    tokens = torch.randint(0, module.words.num_embeddings, shape)
    axes = dict.fromkeys(("tokens", "labels"), ("batch", "seq"))
    return module.to(dtype), {"tokens": tokens, "labels": tokens.clone()}, axes


def tiny() -> Built:
    return built(EagerGpt(2, hidden=32, heads=4, seq=8, vocab=64), 4, torch.float32)


def exact() -> Built:
    """Without dropout: a plan for it can run."""
    return built(EagerGpt(2, hidden=32, heads=4, seq=8, vocab=64, dropout=0.0), 4, torch.float32)


def timed() -> Built:
    """So large that a step takes a while on a core."""
    return built(EagerGpt(4, hidden=256, heads=8, seq=128, vocab=2048, dropout=0.0), 8, torch.float32)


def layer_of_22b() -> Built:
    """One layer of the paper's 22B model, in the precision that it counts in; meant for `meta`."""
    return built(EagerGpt(1, hidden=6144, heads=64, seq=2048, vocab=51200), 4, torch.bfloat16)
