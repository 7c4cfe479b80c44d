"""VGG (Simonyan and Zisserman 2014, arXiv 1409.1556): configurations A (11 layers) and D (16), without batch norm.

The convolutions have 9 220 480 and 14 714 688 parameters. The fully connected layers are linear(flat, 4096),
linear(4096, 4096), linear(4096, classes), with their biases; flat is the size of the last pooling's result:

- images of 224 pixels leave 7 x 7 x 512, so with 1000 classes these layers have 123 642 856 parameters, and VGG-16 has
  the 138 million of the paper;
- images of 32 pixels leave 512, so with the 10 classes of CIFAR-10 they have 2 101 248 + 16 781 312 + 40 970 =
  18 923 530. That is the model of SplitBrain (Lai, Kadav and Kruus 2021, arXiv 2112.15317), here `11-cifar` and
  `16-cifar`: these layers are 67 % of VGG-11, the memory that the paper saves at best.

The batch of 256 is that of the VGG paper; the batch for CIFAR-10 is ours.
"""

from itertools import pairwise
from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

CHANNELS = 3


class Vgg(ModelSize):
    """The numbers of a VGG; `depths` and `widths` are the convolutions of each stage and their channels."""

    NET: ClassVar = "vgg:VggNet"
    SUMMARY: ClassVar = "{depths} convolutions, hidden {hidden}, {image} px, {classes} classes"
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: int
    image: int
    classes: int
    batch: int
    dropout: float = 0.0
    dtype: str = "fp32"

    def problem(self) -> str:
        if len(self.depths) != len(self.widths):
            return f"depths has {len(self.depths)} stages and widths has {len(self.widths)}"
        if not self.image >> len(self.depths):
            return f"image = {self.image} is too small for {len(self.depths)} poolings that halve it"
        return super().problem()

    @property
    def flat(self) -> int:
        """Numbers per image in the result of the last pooling."""
        return self.widths[-1] * (self.image >> len(self.depths)) ** 2

    def channels(self) -> list[tuple[int, int]]:
        """Channels in and out of each convolution."""
        widths = [width for depth, width in zip(self.depths, self.widths, strict=True) for _ in range(depth)]
        return list(pairwise([CHANNELS, *widths]))


WIDTHS = (64, 128, 256, 512, 512)
A, D = (1, 1, 2, 2, 2), (2, 2, 3, 3, 3)  # the paper's configurations: convolutions of each stage
SIZES = {
    "tiny": Vgg((1, 2), widths=(8, 16), hidden=64, image=16, classes=16, batch=8),
    "11": Vgg(A, WIDTHS, hidden=4096, image=224, classes=1000, batch=256),
    "16": Vgg(D, WIDTHS, hidden=4096, image=224, classes=1000, batch=256),
    "11-cifar": Vgg(A, WIDTHS, hidden=4096, image=32, classes=10, batch=128),
    "16-cifar": Vgg(D, WIDTHS, hidden=4096, image=32, classes=10, batch=128),
}
FAMILY = ModelFamily("VGG, image classification", SIZES)
