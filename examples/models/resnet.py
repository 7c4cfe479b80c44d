"""ResNet (He et al. 2015, arXiv 1512.03385, table 1): 18 to 152 layers, images of 224 pixels, a batch of 256.

In a block of three convolutions the 3 x 3 has the stride, not the first 1 x 1 as in the paper. PyTorch's and NVIDIA's
("v1.5") do the same; the numbers of parameters do not change: 11 689 512 with 18 layers, 25 557 032 with 50.

`50x8` to `152x8` are 8 times as wide in all layers, as RaNNC trains them (Tanaka et al. 2021, arXiv 2103.16063); BiT
has the widths (Kolesnikov et al. 2019, arXiv 1912.11370). The largest has the paper's 3.7 billion parameters.
"""

from collections.abc import Iterator
from typing import ClassVar

from ssdsl.model.load.spec import option_text
from ssdsl.model.zoo.family import ModelFamily, ModelSize
from ssdsl.record import Record

CHANNELS = 3
EXPANSION = {"basic": 1, "bottleneck": 4}  # channels out of a block, for each channel inside it


class Convolution(Record):
    """A square kernel with its channels in and out; a batch norm follows it."""

    given: int
    made: int
    kernel: int
    stride: int = 1


class Resnet(ModelSize):
    """The numbers of a ResNet; `depths` are the blocks of each stage, `width` is the first's and doubles each time.

    The convolutions inside a block are `factor` times as wide. `statistics` is the number of equal parts of
    the batch that have their own statistics in batch norm.
    """

    NET: ClassVar = "resnet:ResNet"
    depths: tuple[int, ...]
    width: int
    image: int
    classes: int
    batch: int
    block: str = "basic"
    factor: int = 1
    statistics: int = 1
    dtype: str = "fp32"

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
        inside = width * self.factor
        if self.block == "basic":
            return [Convolution(given, inside, kernel=3, stride=stride), Convolution(inside, width, kernel=3)]
        last = Convolution(inside, EXPANSION[self.block] * width, kernel=1)
        return [Convolution(given, width, kernel=1), Convolution(width, inside, kernel=3, stride=stride), last]

    def describe(self) -> str:
        wide = f" x {self.factor}" if self.factor > 1 else ""
        return f"{option_text(self.depths)} {self.block} blocks, width {self.width}{wide}, {self.image} px"


DEPTHS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
SIZES = {
    "tiny": Resnet((1, 1), width=8, image=32, classes=16, batch=8),
    "18": Resnet((2, 2, 2, 2), width=64, image=224, classes=1000, batch=256),
    **{name: Resnet(depths, 64, 224, classes=1000, batch=256, block="bottleneck") for name, depths in DEPTHS.items()},
    **{f"{name}x8": Resnet(d, 8 * 64, 224, classes=1000, batch=256, block="bottleneck") for name, d in DEPTHS.items()},
}

FAMILY = ModelFamily("ResNet, image classification", SIZES)
