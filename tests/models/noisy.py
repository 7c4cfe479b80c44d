"""A model that draws in every way: per layer, per sample, per channel; before, between and inside its layers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and an MLP with dropout, and stochastic depth: a sample skips the block now and then."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.rise, self.fall = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.into(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), 0.1)
        risen = F.rrelu(self.rise(x), training=True)
        return x + drop_path(F.alpha_dropout(self.fall(risen), 0.1, training=True))


def drop_path(x: torch.Tensor, p: float = 0.3) -> torch.Tensor:
    return x * x.new_empty((x.shape[0], 1, 1)).bernoulli_(1 - p).div_(1 - p)


class Noisy(nn.Module):
    def __init__(self, hidden: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(8, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(2))
        self.memory = nn.GRU(hidden, hidden, 2, dropout=0.3, batch_first=True)
        self.heads = nn.Linear(hidden, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.rand(3)  # nothing reads it
        x = self.enter(x + 0.1 * torch.randn_like(x))
        x = F.dropout1d(x.transpose(1, 2), 0.2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x, _ = self.memory(x)
        x = x * torch.empty(x.shape).exponential_() + torch.rand(x.shape[-1])
        logits = F.gumbel_softmax(self.heads(x), tau=2.0)
        smooth = torch.normal(logits.detach(), 0.1) + torch.randint(0, 2, logits.shape)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()) + (logits * smooth).mean()


def net() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    batch = {"x": torch.randn(6, 5, 8), "y": torch.randint(0, 4, (6, 5))}
    return Noisy(), batch, {"x": ("batch", "seq", "width"), "y": ("batch", "seq")}
