"""Convolutions with batch statistics: of the whole batch, of groups of it, with and without a momentum."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssdsl

BATCH, CHANNELS = 8, 4
Given = tuple[nn.Module, list[dict[str, Tensor]], dict[str, tuple[str, ...]]]


class Net(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.a, self.a_norm = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS, **options)
        self.b, self.b_norm = nn.Conv2d(CHANNELS, CHANNELS, 3), nn.BatchNorm2d(CHANNELS, **options)
        self.head = nn.Linear(CHANNELS, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.a_norm(self.a(x)).relu()
        x = self.b_norm(self.b(x)).relu()
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def _net(groups: int, **options: Any) -> Given:
    torch.manual_seed(0)
    module = Net(**options).double()
    draw = torch.Generator().manual_seed(1)
    batches = [
        {
            "x": torch.randn(BATCH, 3, 6, 6, generator=draw, dtype=torch.float64),
            "labels": torch.randint(0, 5, (BATCH,), generator=draw),
        }
        for _ in range(2)
    ]
    module = ssdsl.micro_batch_statistics(module, groups) if groups else module
    return module, batches, {"x": ("batch", "channel", "height", "width"), "labels": ("batch",)}


whole = functools.partial(_net, 0)
cumulative = functools.partial(_net, 0, momentum=None)
grouped = functools.partial(_net, 4)
grouped_cumulative = functools.partial(_net, 4, momentum=None)
grouped_plain = functools.partial(_net, 4, affine=False, track_running_stats=False)
