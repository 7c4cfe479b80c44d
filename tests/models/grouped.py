"""Convolutions in groups of channels."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

IMAGE = ("batch", "colour", "height", "width")
Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, Any]]


class Depthwise(nn.Module):
    """A block of ConvNeXt between two of MobileNet, one with three channels for each of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.wide = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 24, 3, padding=1, groups=8)
        self.narrow, self.deep = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.up, self.leave = nn.ConvTranspose2d(8, 16, 2, 2, groups=8), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.narrow(F.relu(self.wide(self.enter(x))))
        return self.leave(torch.tanh(self.up(self.deep(x)))).square().mean()


class Cardinal(nn.Module):
    """Groups of several channels, as in ResNeXt, along lines and in volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU(), nn.Conv1d(16, 8, 3, padding=1, groups=4))
        self.volume = nn.Sequential(nn.Conv3d(3, 8, 1), nn.ReLU(), nn.ConvTranspose3d(8, 12, 2, 2, groups=4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x.flatten(2)).square().mean() + self.volume(x[:, :, None]).square().mean()


class PerSample(nn.Module):
    """A kernel of its own for each sample, as in StyleGAN2: the batch is the groups."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(6, 3, 3, 3)), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        count, _, *space = x.shape
        weight = self.weight * self.style(z)[:, None, :, None, None]
        x = F.conv2d(x.reshape(1, -1, *space), weight.flatten(0, 1), padding=1, groups=count)
        return x.reshape(count, -1, *space).square().mean()


def depthwise() -> Built:
    torch.manual_seed(0)
    return Depthwise(), {"x": torch.randn(4, 3, 8, 6)}, {"x": IMAGE}


def cardinal() -> Built:
    torch.manual_seed(0)
    return Cardinal(), {"x": torch.randn(4, 3, 4, 6)}, {"x": IMAGE}


def per_sample() -> Built:
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 3, 8, 6), "z": torch.randn(4, 4)}
    return PerSample(), batch, {"x": IMAGE, "z": ("batch", "latent")}


class Shuffled(nn.Module):
    """Channels of 4 x 3 that a pixel shuffle takes for 3 x 4: no dimension fits both."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 12, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(F.pixel_shuffle(F.channel_shuffle(self.enter(x), 3), 2)).square().mean()


def shuffled() -> Built:
    torch.manual_seed(0)
    return Shuffled(), {"x": torch.randn(4, 3, 4, 6)}, {"x": IMAGE}
