"""A 3-D U-Net: down by max pooling, up by transposed convolutions, each level joined with its equal on the way down."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.nets.inputs import Batch, labels, noise
from ssdsl.model.zoo.unet3d import Unet3d


class UNet3d(nn.Module):
    """Returns the mean cross-entropy of all voxels.

    volume [batch, channels, depth, height, width], labels [batch, depth, height, width] -> a scalar.
    """

    def __init__(self, size: Unet3d) -> None:
        super().__init__()
        widths = size.widths()
        self.down = nn.ModuleList(double(*w) for w in widths)
        self.pool = nn.MaxPool3d(2)
        outer = [w[-1] for w in widths]
        self.rise = nn.ModuleList(nn.ConvTranspose3d(w, w, 2, stride=2, bias=False) for w in outer[:0:-1])
        # a level reads the result of the deeper one, whose channels the transposed convolution keeps, and its own skip
        self.up = nn.ModuleList(double(deeper + w, w, w) for w, deeper in reversed(list(pairwise(outer))))
        self.head = nn.Conv3d(outer[0], size.classes, 1)

    def forward(self, volume: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = down_and_up(volume, self.down, self.pool, self.rise, self.up)
        return F.cross_entropy(self.head(x), labels)

    @staticmethod
    def example(size: Unet3d, draws: torch.Generator, meta: bool) -> Batch:
        """Volumes of noise, and a random class for each voxel."""
        space = (size.width, size.width, size.width)
        volume = noise((size.batch, size.channels, *space), draws, meta)
        return {"volume": volume, "labels": labels((size.batch, *space), size.classes, draws, meta)}


def down_and_up(
    x: torch.Tensor,
    down: nn.ModuleList,
    pool: Callable[[torch.Tensor], torch.Tensor],
    rise: nn.ModuleList,
    up: nn.ModuleList,
) -> torch.Tensor:
    """The result of the levels of a U-Net; on the way up each also reads the result of the same level on the way down.

    x [batch, channels, ...], with two or three axes of space; `up` and `rise` begin with the deepest level.
    """
    skips: list[torch.Tensor] = []
    for level in down:
        skips.append(level(pool(skips[-1]) if skips else x))
    y = skips.pop()
    for larger, level in zip(rise, up, strict=True):
        y = level(torch.cat([skips.pop(), larger(y)], dim=1))
    return y


def double(given: int, inner: int, made: int) -> nn.Sequential:
    """Two padded convolutions, `given` to `inner` to `made` channels, each with batch norm, whose shift takes the place
    of a bias, and ReLU."""
    layers = [
        (nn.Conv3d(a, b, 3, padding=1, bias=False), nn.BatchNorm3d(b), nn.ReLU())
        for a, b in ((given, inner), (inner, made))
    ]
    return nn.Sequential(*layers[0], *layers[1])
