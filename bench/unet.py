"""A U-Net as a user writes it, for the compiler's times: four levels of two convolutions with batch norms each."""

import torch
from torch import nn
from torch.nn import functional as F

LEVELS, CLASSES = 4, 8
Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Twice(nn.Sequential):
    """Two convolutions, each with a batch norm."""

    def __init__(self, given: int, made: int) -> None:
        layers: list[nn.Module] = []
        for channels in (given, made):
            layers += [nn.Conv2d(channels, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Down and up again; each level hands what it has over to the level of its size on the way up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels << level for level in range(LEVELS)]
        self.down = nn.ModuleList(map(Twice, [3, *widths], widths))
        self.middle = Twice(widths[-1], 2 * widths[-1])
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.up = nn.ModuleList(Twice(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(channels, CLASSES, 1)

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, skips = image, []
        for layer in self.down:
            skips.append(layer(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for wider, layer, skip in zip(self.wider, self.up, reversed(skips), strict=True):
            x = layer(torch.cat([skip, wider(x)], 1))
        return F.cross_entropy(self.head(x), mask)


def unet() -> Built:
    return built(channels=64, batch=64, size=128)


def small() -> Built:
    """A step takes a while on a core."""
    return built(channels=16, batch=8, size=64)


def built(channels: int, batch: int, size: int) -> Built:
    inputs = {"image": torch.randn(batch, 3, size, size), "mask": torch.zeros(batch, size, size, dtype=torch.long)}
    axes = {"image": ("batch", "colour", "height", "width"), "mask": ("batch", "height", "width")}
    return UNet(channels), inputs, axes
