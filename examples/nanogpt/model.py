"""A small GPT on bytes, after Radford et al. 2019: plain PyTorch, which knows nothing of plans."""

import torch
from torch import nn
from torch.nn import functional as F

BYTES = 256


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.drop(self.out(y.transpose(1, 2).reshape(batch, seq, width)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    """Returns the logits of what comes next, and the loss; computes under autocast to a type if one is given."""

    def __init__(
        self,
        layers: int = 4,
        width: int = 64,
        heads: int = 4,
        seq: int = 64,
        dropout: float = 0.1,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.autocast = autocast
        self.tokens, self.positions = nn.Embedding(BYTES, width), nn.Embedding(seq, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:  # what adds to the residual, so that its variance does not grow with depth
            for layer in (block.attention.out, block.down):
                nn.init.normal_(layer.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(x.device.type, self.autocast, enabled=self.autocast is not None):
            h = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
            for block in self.blocks:
                h = block(h)
            logits = self.head(self.norm(h))
            return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())
