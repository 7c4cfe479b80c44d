"""ResNet (He et al. 2015, arXiv 1512.03385, table 1): 18 and 50 layers, images of 224 pixels, a batch of 256.

In a block of three convolutions the 3 x 3 has the stride, not the first 1 x 1 as in the paper. PyTorch's and NVIDIA's
("v1.5") do the same; the numbers of parameters do not change: 11 689 512 and 25 557 032.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssdsl.model.load.options import option_text
from ssdsl.model.zoo.build import group_problem, grouped, images
from ssdsl.model.zoo.family import ModelSize

if TYPE_CHECKING:
    import torch

ABOUT = "ResNet, image classification"
CHANNELS = 3
EXPANSION = {"basic": 1, "bottleneck": 4}  # channels out of a block, for each channel inside it


@dataclass(frozen=True, slots=True)
class Convolution:
    """A square kernel with its channels in and out; a batch norm follows it."""

    given: int
    made: int
    kernel: int
    stride: int = 1

    def parameters(self) -> int:
        return self.kernel**2 * self.given * self.made + 2 * self.made


@dataclass(frozen=True, slots=True)
class Resnet(ModelSize):
    """The numbers of a ResNet; `depths` are the blocks of each stage, `width` is the first's and doubles each time.

    `statistics` is the number of equal parts of the batch that have their own statistics in batch norm.
    """

    depths: tuple[int, ...]
    width: int
    image: int
    classes: int
    batch: int
    block: str = "basic"
    statistics: int = 1
    dtype: str = "fp32"

    def problem(self) -> str:
        return group_problem(self.batch, self.statistics)

    @property
    def features(self) -> int:
        """Channels of the last stage."""
        return (self.width << (len(self.depths) - 1)) * EXPANSION[self.block]

    def stem(self) -> Convolution:
        return Convolution(CHANNELS, self.width, kernel=7, stride=2)

    def blocks(self) -> Iterator[tuple[list[Convolution], Convolution | None]]:
        """For each block its convolutions, and that of its shortcut if the block changes the shape."""
        given = self.width
        for stage, depth in enumerate(self.depths):
            width = self.width << stage
            made = width * EXPANSION[self.block]
            for number in range(depth):
                stride = 2 if stage and not number else 1
                shortcut = Convolution(given, made, kernel=1, stride=stride) if stride > 1 or given != made else None
                yield self._body(given, width, stride), shortcut
                given = made

    def _body(self, given: int, width: int, stride: int) -> list[Convolution]:
        if self.block == "basic":
            return [Convolution(given, width, kernel=3, stride=stride), Convolution(width, width, kernel=3)]
        last = Convolution(width, EXPANSION[self.block] * width, kernel=1)
        return [Convolution(given, width, kernel=1), Convolution(width, width, kernel=3, stride=stride), last]

    def parameters(self) -> int:
        """The parameters of the convolutions, with two per channel for batch norm, and of the linear layer."""
        blocks = [c for body, shortcut in self.blocks() for c in (*body, shortcut) if c is not None]
        convolutions = sum(c.parameters() for c in (self.stem(), *blocks))
        return convolutions + (self.features + 1) * self.classes

    def describe(self) -> str:
        return f"{option_text(self.depths)} {self.block} blocks, width {self.width}, {self.image} px"

    def net(self) -> "torch.nn.Module":
        from ssdsl.model.zoo.nets.resnet import ResNet

        return grouped(ResNet(self), self.statistics)

    def example(self, draws: "torch.Generator", meta: bool) -> "dict[str, torch.Tensor]":
        shape = (self.batch, CHANNELS, self.image, self.image)
        pixels, labels = images(shape, self.classes, self.dtype, draws, meta)
        return {"pixel_values": pixels, "labels": labels}


SIZES = {
    "tiny": Resnet((1, 1), width=8, image=32, classes=16, batch=8),
    "18": Resnet((2, 2, 2, 2), width=64, image=224, classes=1000, batch=256),
    "50": Resnet((3, 4, 6, 3), width=64, image=224, classes=1000, batch=256, block="bottleneck"),
}
LAPTOP = ("tiny",)
