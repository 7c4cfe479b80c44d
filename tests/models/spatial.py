"""Small networks of images and volumes, to be split in space."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Batch = dict[str, torch.Tensor]
IMAGE = ("batch", "colour", "height", "width")
VOLUME = ("batch", "colour", "depth", "height", "width")


class UNet(nn.Module):
    """Two levels with a skip; `space` axes."""

    def __init__(self, space: int, transposed: bool = False, groups: int = 0, mode: str = "nearest") -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[space - 1]
        up = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[space - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[space - 1]
        self.down = conv(2, 4, 3, padding=1)
        self.first = nn.GroupNorm(groups, 4) if groups else norm(4)
        self.pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[space - 1](2)
        self.bottom = conv(4, 6, 3, padding="same")
        self.second = nn.GroupNorm(groups, 6) if groups else norm(6)
        self.up: nn.Module = up(6, 6, 2, 2) if transposed else nn.Upsample(scale_factor=2, mode=mode)
        self.join = conv(10, 4, 3, padding=1)
        self.out = conv(4, 2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        high = F.relu(self.first(self.down(x)))
        low = F.relu(self.second(self.bottom(self.pool(high))))
        joined = torch.cat([high, self.up(low)], 1)
        return (self.out(F.relu(self.join(joined))) - y).square().mean()


class Stem(nn.Module):
    """ResNet's first layer and pooling, a block that halves the size, and a classifier on the mean over space."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.block = nn.Conv2d(4, 6, 3, 2, 1)
        self.short = nn.Conv2d(4, 6, 1, 2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.pool(F.relu(self.norm(self.conv(x))))
        h = F.relu(self.block(h) + self.short(h))
        return F.cross_entropy(self.head(self.mean(h).flatten(1)), y)


class Chain(nn.Module):
    """Convolutions alone, with nothing between them."""

    def __init__(self, *kernels: int) -> None:
        super().__init__()
        given = (2, *[3] * (len(kernels) - 1))
        pairs = zip(given, kernels, strict=True)
        self.layers = nn.ModuleList(nn.Conv2d(channels, 3, k, padding="same") for channels, k in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Various(nn.Module):
    """What else reads windows: averages, bilinear and adaptive resampling, instance norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 4, stride=1, padding=2, dilation=1, groups=2)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.last = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.avg_pool2d(self.norm(self.conv(x)), 3, 2, 1, ceil_mode=True, count_include_pad=False)
        h = F.interpolate(torch.tanh(h), size=(11, 9), mode="bilinear")
        h = F.adaptive_avg_pool2d(self.last(h), (7, 6)) + F.adaptive_max_pool2d(h, (7, 6))
        h, _ = F.max_pool2d(h, 2, 1, return_indices=True)
        return F.interpolate(h, scale_factor=1.5, mode="bilinear", align_corners=True).square().mean()


class Moved(nn.Module):
    """Convolutions that see earlier places only, each written in another way; the last slices take most of an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.zeros, self.behind = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3, padding=2)
        self.first, self.both = nn.Conv1d(4, 4, 4), nn.Conv1d(4, 4, 3, stride=2)
        self.start = nn.Parameter(torch.randn(1, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.zeros(F.pad(x, (2, 0))).relu()
        h = h + self.behind(h)[..., :-2]
        h = h + self.first(torch.cat([h[..., :1].expand(-1, -1, 3), h], 2)).relu()
        h = h + F.pad(h, (1, -1))
        h = self.both(torch.cat([self.start.expand(h.shape[0], -1, -1), h, h[..., -1:]], 2))
        return (h[..., 1:] - h[..., :-1]).square().mean()


class Shifted(nn.Module):
    """Convolutions of a plane that is rolled between, and rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = h + self.second(h.roll((-3, 2), (2, 3)).relu()).roll((3, -2), (2, 3))
        return (h * h.roll(-1, -2)).square().mean()


def _images(*sizes: int, batch: int = 4, **more: torch.Tensor) -> Batch:
    return {"x": torch.randn(batch, 2, *sizes), **more}


def unet() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return UNet(2), _images(12, 8, y=torch.randn(4, 2, 12, 8)), {"x": IMAGE, "y": IMAGE}


def unet_transposed() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return UNet(2, transposed=True, groups=2), _images(12, 8, y=torch.randn(4, 2, 12, 8)), {"x": IMAGE, "y": IMAGE}


def unet3d() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    model = UNet(3, mode="trilinear")
    return model, _images(4, 8, 6, batch=2, y=torch.randn(2, 2, 4, 8, 6)), {"x": VOLUME, "y": VOLUME}


def stem() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return Stem(), _images(26, 30, y=torch.randint(3, (4,))), {"x": IMAGE, "y": ("batch",)}


def chain() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return Chain(3, 5), _images(12, 8), {"x": IMAGE}


def wide() -> tuple[nn.Module, Batch, Any]:
    """Kernels that are wider than a neighbour's part, on a height that does not divide."""
    torch.manual_seed(0)
    return Chain(4, 11), _images(13, 8), {"x": IMAGE}


def various() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return Various(), _images(13, 12), {"x": IMAGE}


def moved() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return Moved(), _images(17), {"x": ("batch", "channels", "length")}


def shifted() -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    return Shifted(), _images(13, 8), {"x": IMAGE}
