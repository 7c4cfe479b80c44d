"""A model that says more than its loss: batch norms, dropout, results by name, and a branch that only training has."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS, CLASSES = 8, 4
Given = tuple[nn.Module, list[dict[str, Tensor]], dict[str, tuple[str, ...]]]


@dataclass
class Scores:
    loss: Tensor
    logits: Tensor
    pooled: Tensor
    total: Tensor
    labels: Tensor


class Stage(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = (
            nn.Conv2d(channels, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.Dropout(0.2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)).relu())


class Net(nn.Module):
    """`aux` is read in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(3), Stage(CHANNELS), Stage(CHANNELS)])
        self.head, self.aux = nn.Linear(CHANNELS, CLASSES), nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Scores:
        for stage in self.stages:
            x = stage(x)
        pooled = x.mean((2, 3))
        logits = self.head(pooled)
        loss = F.cross_entropy(logits, labels)
        if self.training:
            loss = loss + 0.1 * F.cross_entropy(self.aux(pooled), labels)
        return Scores(loss, logits, pooled, logits.sum(), labels)


def net() -> Given:
    torch.manual_seed(0)
    module = Net().double()
    draw = torch.Generator().manual_seed(1)
    batches = [
        {
            "x": torch.randn(8, 3, 6, 6, generator=draw, dtype=torch.float64),
            "labels": torch.randint(0, CLASSES, (8,), generator=draw),
        }
        for _ in range(2)
    ]
    return module, batches, {"x": ("batch", "channel", "height", "width"), "labels": ("batch",)}


class Followed(nn.Module):
    """A head and a mean of inputs of which training alone has use."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux = nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        y = self.body(x)
        loss = y.square().mean()
        if self.training:
            loss = loss + self.aux(y).square().mean()
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return loss


def followed() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    return Followed(), {"x": torch.randn(4, 4, 2)}, {"x": ("batch", "seq", "stream")}
