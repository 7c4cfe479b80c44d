"""Four equal layers between an embedding and a head: small enough to read the program made of it."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fall(F.gelu(self.rise(self.norm(x))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(4))
        self.head = nn.Linear(8, 24)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x), labels)


def mlp() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 tokens out of 24 with a label each."""
    torch.manual_seed(0)
    inputs = {"tokens": torch.randint(0, 24, (8,)), "labels": torch.randint(0, 24, (8,))}
    return Mlp(), inputs, {"tokens": ("batch",), "labels": ("batch",)}
