"""A frozen block of a language model with adapters beside it; what is trained is small."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two small ones (Hu et al. 2021)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.down, self.up = nn.Linear(size, 2, bias=False), nn.Linear(2, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    """Three heads' axes in one weight, a convolution, a norm and sizes that few numbers divide, all frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(31, 16), nn.Linear(16, 48), Adapted(16)
        self.mix, self.norm, self.odd = nn.Conv1d(16, 16, 3, padding=1), nn.LayerNorm(16), nn.Linear(16, 15)
        self.head = nn.Linear(15, 31, bias=False)
        for module in (self.embed, self.qkv, self.mix, self.norm, self.odd):
            module.requires_grad_(False)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x = self.norm(self.embed(x))
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return cross_entropy(self.head(self.odd(x)).flatten(0, 1), label.flatten())


def adapters():
    torch.manual_seed(0)
    batch = {name: torch.randint(31, (8, 6)) for name in ("x", "label")}
    return Block(), batch, dict.fromkeys(batch, ("batch", "seq"))
