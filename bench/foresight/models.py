"""GPT as the papers trained it: attention in plain operators with a causal mask that is added, and dropout; or fused.

Each function is one model of a published table; `python -m bench foresight` builds them without numbers.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Attention(nn.Module):
    """Heads of one width; queries, keys and values are one product."""

    def __init__(self, hidden: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x: [batch, positions, hidden]."""
        batch, positions, _ = x.shape
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).view(batch, positions, 3, self.heads, -1).unbind(2))
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
            return self.out(out.transpose(1, 2).flatten(2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two products with a GELU between them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rise = nn.Linear(hidden, 4 * hidden)
        self.fall = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fall(F.gelu(self.rise(x), approximate="tanh"))


class Layer(nn.Module):
    """A transformer layer with its norms in front."""

    def __init__(self, hidden: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(hidden), Attention(hidden, heads, dropout, fused)
        self.ln_2, self.mlp = nn.LayerNorm(hidden), Mlp(hidden)
        self.drop_1, self.drop_2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_1(self.attn(self.ln_1(x), mask))
        return x + self.drop_2(self.mlp(self.ln_2(x)))


class Embed(nn.Module):
    """Words and positions."""

    def __init__(self, hidden: int, seq: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Parameter(torch.zeros(seq, hidden))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.drop(self.wte(tokens) + self.wpe)


class Gpt(nn.Module):
    """The cross entropy of the next token; the embedding is also the classifier."""

    def __init__(self, layers: int, hidden: int, heads: int, seq: int, vocab: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.embed = Embed(hidden, seq, vocab, dropout)
        self.h = nn.ModuleList(Layer(hidden, heads, dropout, fused) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.register_buffer("mask", torch.full((seq, seq), float("-inf")).triu(1))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.h:
            x = layer(x, self.mask)
        logits = F.linear(self.ln_f(x), self.embed.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    batch: int,
    seq: int = 2048,
    vocab: int = 51200,
    dropout: float = 0.1,
    fused: bool = False,
) -> Callable[[], Built]:
    """A function that builds one, in 16 bits."""

    def build() -> Built:
        module = Gpt(layers, hidden, heads, seq, vocab, dropout, fused).to(torch.float16)
        tokens = torch.zeros((batch, seq), dtype=torch.int64)
        axes = dict.fromkeys(("tokens", "labels"), ("batch", "seq"))
        return module, {"tokens": tokens, "labels": tokens}, axes

    return build


# Narayanan et al. 2021 (arXiv 2104.04473), table 1
sc21_1_7b = gpt(24, 2304, 24, batch=512)
sc21_3_6b = gpt(30, 3072, 32, batch=512)
sc21_7_5b = gpt(36, 4096, 32, batch=512)
sc21_18b = gpt(40, 6144, 48, batch=1024)
sc21_39b = gpt(48, 8192, 64, batch=1536)
sc21_76b = gpt(60, 10240, 80, batch=1792)
sc21_145b = gpt(80, 12288, 96, batch=2304)
sc21_310b = gpt(96, 16384, 128, batch=2160)
sc21_530b = gpt(105, 20480, 128, batch=2520)
sc21_1t = gpt(128, 25600, 160, batch=3072)

# Korthikanti et al. 2022 (arXiv 2205.05198), table 3
korthikanti_22b = gpt(48, 6144, 64, batch=4)
korthikanti_175b = gpt(96, 12288, 96, batch=64)
korthikanti_530b = gpt(105, 20480, 128, batch=280)
korthikanti_1t = gpt(128, 25600, 160, batch=512)

# Alpa (Zheng et al. 2022, arXiv 2201.12023), table 5; dropout is left out there
alpa_2_6b = gpt(32, 2560, 32, batch=1024, seq=1024, dropout=0.0)
alpa_6_7b = gpt(32, 4096, 32, batch=1024, seq=1024, dropout=0.0)
alpa_15b = gpt(48, 5120, 32, batch=1024, seq=1024, dropout=0.0)
alpa_39b = gpt(48, 8192, 64, batch=1024, seq=1024, dropout=0.0)

# Zero Bubble (Qi et al. 2023, arXiv 2401.10241), table 3
zero_bubble_1_5b = gpt(22, 2304, 24, batch=144, seq=1024)
zero_bubble_6_2b = gpt(30, 4096, 32, batch=72, seq=1024)
zero_bubble_14_6b = gpt(46, 5120, 40, batch=48, seq=1024)
zero_bubble_28_3b = gpt(62, 6144, 48, batch=96, seq=1024)

# MegaScale (Jiang et al. 2024, arXiv 2402.15627), table 1, in the batches of its table 2
megascale_768 = gpt(96, 12288, 128, batch=768, vocab=64000)
megascale_6144 = gpt(96, 12288, 128, batch=6144, vocab=64000)

# FlashAttention-2 (Dao 2023, arXiv 2307.08691), table 1: GPT-3's sizes, with heads 128 wide, in a million tokens
flash_1_3b_2k = gpt(24, 2048, 16, batch=512, vocab=50264, dropout=0.0, fused=True)
flash_1_3b_8k = gpt(24, 2048, 16, batch=128, seq=8192, vocab=50264, dropout=0.0, fused=True)
flash_2_7b_2k = gpt(32, 2560, 20, batch=512, vocab=50264, dropout=0.0, fused=True)
flash_2_7b_8k = gpt(32, 2560, 20, batch=128, seq=8192, vocab=50264, dropout=0.0, fused=True)

# of which one layer is the difference
layers_2 = gpt(2, 6144, 64, batch=4)
layers_3 = gpt(3, 6144, 64, batch=4)
