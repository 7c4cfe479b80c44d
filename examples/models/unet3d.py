"""3-D U-Net (Çiçek et al. 2016, arXiv 1606.06650) for one channel, as Oyama et al. 2020 (arXiv 2007.12856) train it.

Down: double convolutions with 32 and 64, 64 and 128, 128 and 256 channels, poolings between them, and 256 and 512 at
the bottom. Up: transposed convolutions that keep the channels, then double convolutions back to 256, 128 and 64, and
one convolution of 1 x 1 x 1.

The paper counts 19 069 955 parameters. These are the weights and biases of all convolutions for 3 channels in and 3
classes out, with no bias in transposed convolutions, and without batch norms. Here a batch norm's shift takes the place
of the bias of the convolution before it, whose gradient would be rounding only: 2 numbers per channel in place of one.
With one channel in these are 19 070 563, or 19.07 million.

Convolutions are padded, so that a volume of `width` x `width` x `width` voxels has as many labels; the paper's are not.
The batch is ours.
"""

from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize


class Unet3d(ModelSize):
    """The numbers of a U-Net; its first convolution makes `base` channels, and it pools `levels` times.

    `statistics` is the number of equal parts of the batch that have their own statistics in batch norm.
    """

    NET: ClassVar = "unet3d:UNet3d"
    SUMMARY: ClassVar = "{channels} x {width}^3 voxels, {levels} levels, {base} channels, {classes} classes"
    AXES: ClassVar = {
        "volume": ("batch", "channel", "depth", "height", "width"),
        "labels": ("batch", "depth", "height", "width"),
    }
    width: int
    base: int
    levels: int
    channels: int
    classes: int
    batch: int
    statistics: int = 1
    dtype: str = "fp32"

    def problem(self) -> str:
        if self.width % (1 << self.levels):
            return f"width = {self.width} is no multiple of {1 << self.levels}, as {self.levels} poolings halve it"
        return super().problem()

    def widths(self) -> list[tuple[int, int, int]]:
        """Channels of the double convolution of each level on the way down: into it, between its two and out of it.

        >>> SIZES["128"].widths()
        [(1, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512)]
        """
        inner = [self.base << level for level in range(self.levels + 1)]
        given = [self.channels, *(2 * w for w in inner)]
        return [(a, w, 2 * w) for a, w in zip(given, inner, strict=False)]


SIZES = {
    "tiny": Unet3d(width=8, base=4, levels=2, channels=1, classes=3, batch=4),
    "128": Unet3d(width=128, base=32, levels=3, channels=1, classes=3, batch=16),
    "256": Unet3d(width=256, base=32, levels=3, channels=1, classes=3, batch=16),
}
FAMILY = ModelFamily("3-D U-Net, a class for each voxel", SIZES)
