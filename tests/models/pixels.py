"""Attention over the pixels of an image: its queries and keys lie on one axis, made of height and width."""

import torch
from torch import nn
from torch.nn import functional as F

HEIGHT, WIDTH, CHANNELS, HEADS, WORDS = 4, 6, 8, 2, 5


class Pixels(nn.Module):
    """`kind`: open (all see all), causal (row by row), masked (by a constant mask), groups (two heads for each key),
    crossed (words ask, pixels answer)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, keys = kind, CHANNELS // HEADS if kind == "groups" else CHANNELS
        self.enter, self.key, self.value = (
            nn.Conv2d(3, CHANNELS, 1),
            nn.Conv2d(CHANNELS, keys, 1),
            nn.Conv2d(8, keys, 1),
        )
        self.query, self.leave = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, 1)

    def forward(self, image: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = self.enter(image)
        asks = words if self.kind == "crossed" else x.flatten(2).transpose(1, 2)
        query = self.query(asks).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = (
            project(x).unflatten(1, (-1, CHANNELS // HEADS)).flatten(3).transpose(-2, -1)
            for project in (self.key, self.value)
        )
        count = HEIGHT * WIDTH
        near = (torch.arange(count)[:, None] - torch.arange(count)).abs() < 7
        found = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=near if self.kind == "masked" else None,
            is_causal=self.kind == "causal",
            enable_gqa=self.kind == "groups",
        )
        return (self.leave(found.transpose(1, 2).flatten(2)) + asks).square().mean()


def _net(kind: str) -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    image = torch.randn(2, 3, HEIGHT, WIDTH, generator=generator)
    words = torch.randn(2, WORDS, CHANNELS, generator=generator)
    names = {"image": ("batch", "colour", "height", "width"), "words": ("batch", "word", "feature")}
    return Pixels(kind), {"image": image, "words": words}, names


def open_() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return _net("open")


def causal() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return _net("causal")


def masked() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return _net("masked")


def groups() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return _net("groups")


def crossed() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return _net("crossed")
