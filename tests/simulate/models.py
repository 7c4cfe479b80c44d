"""Models that the simulator's tests share: GPTs whose activations the papers count, and a chain of equal layers."""

import itertools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from eager_gpt import EagerGpt, built

sys.path.pop(0)

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
SEQ, BATCH, HIDDEN, HEADS = 256, 4, 512, 8


def paper(layers: int) -> Built:
    return built(EagerGpt(layers, hidden=HIDDEN, heads=HEADS, seq=SEQ, vocab=1024), BATCH, torch.bfloat16)


def two_layers() -> Built:
    return paper(2)


def three_layers() -> Built:
    return paper(3)


def runs() -> Built:
    """Without dropout: programs of it run."""
    return built(EagerGpt(2, hidden=32, heads=4, seq=16, vocab=64, dropout=0.0), 4, torch.bfloat16)


class Chain(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, torch.zeros_like(x))


def chain(layers: int, batch: int) -> Built:
    return Chain(layers), {"x": torch.randn(batch, 4)}, {"x": ("batch", "width")}


def chain_of_32() -> Built:
    return chain(32, 256)


def chain_of_8() -> Built:
    return chain(8, 64)


def chain_of_8_twice_the_batch() -> Built:
    return chain(8, 128)


class Rows(nn.Module):
    """Convolutions of an image, each with its activation, and a loss for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (2, 8, 8, 8, 8)
        pairs = itertools.pairwise(sizes)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in pairs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def rows() -> Built:
    return Rows(), {"x": torch.randn(2, 2, 48, 32)}, {"x": ("batch", "colour", "height", "width")}
