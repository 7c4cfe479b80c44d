"""ResNet: residual blocks of two 3 x 3 convolutions, or of a 3 x 3 between two 1 x 1; each with a batch norm."""

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.nets.inputs import classified_images
from ssdsl.model.zoo.resnet import Convolution, Resnet


class ResNet(nn.Module):
    """A convolution 7/2/3 and a max pooling 3/2/1, the blocks, the mean of each channel, one linear layer."""

    example = staticmethod(classified_images)

    def __init__(self, size: Resnet) -> None:
        super().__init__()
        self.stem = normed(size.stem())
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(body, shortcut) for body, shortcut in size.blocks()))
        self.head = nn.Linear(size.features, size.classes)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.stem(pixel_values)))
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


class ResidualBlock(nn.Module):
    """The sum of a chain of convolutions and of their input; a 1 x 1 convolution where the shapes differ."""

    def __init__(self, body: "list[Convolution]", shortcut: "Convolution | None") -> None:
        super().__init__()
        self.body = nn.ModuleList(map(normed, body))
        self.shortcut = normed(shortcut) if shortcut is not None else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.body[:-1]:
            y = F.relu(layer(y))
        return F.relu(self.body[-1](y) + self.shortcut(x))


def normed(c: Convolution) -> nn.Sequential:
    """A padded convolution and its batch norm, whose shift takes the place of a bias."""
    convolution = nn.Conv2d(c.given, c.made, c.kernel, c.stride, padding=c.kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(c.made))
