"""Convolutions with batch norm, and skip connections from the first stage to the last."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class UNet(nn.Module):
    """Down and up again; every level hands its activations over to the level of its size on the way up."""

    def __init__(self, channels: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList(Layer(channels) for _ in range(2))
        self.middle = Layer(channels)
        self.up = nn.ModuleList(Layer(channels) for _ in range(2))
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for layer, skip in zip(self.up, reversed(skips), strict=True):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = layer(torch.cat([x, skip], 1)[:, : skip.shape[1]] + skip)
        return F.cross_entropy(self.head(x), mask)


def unet() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """8 images of 16 x 16 pixels, a class for every pixel, some of them ignored."""
    torch.manual_seed(0)
    mask = torch.randint(0, 5, (8, 16, 16))
    mask[:3, :5] = -100
    inputs = {"image": torch.randn(8, 3, 16, 16), "mask": mask}
    return UNet(), inputs, {"image": ("batch", "channels", "height", "width"), "mask": ("batch", "height", "width")}
