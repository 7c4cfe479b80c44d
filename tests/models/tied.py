"""One embedding used at the input, in the middle and at the output: the same weight in every stage of a pipeline."""

import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    def __init__(self, vocabulary: int = 24, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(4)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for number, layer in enumerate(self.layers):
            x = x + layer(x)
            if number == 1:  # a guess half way, fed back through the same table
                x = x + F.linear(x, self.embed.weight).softmax(-1) @ self.embed.weight
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tied() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 sequences of 6 tokens out of 24; a third of the labels are ignored, unevenly over the batch."""
    torch.manual_seed(0)
    labels = torch.randint(0, 24, (8, 6))
    labels[:4, :4] = -100
    inputs = {"tokens": torch.randint(0, 24, (8, 6)), "labels": labels}
    return Tied(), inputs, {"tokens": ("batch", "seq"), "labels": ("batch", "seq")}
