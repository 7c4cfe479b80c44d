"""CosmoFlow (Mathuriya et al. 2018, arXiv 1808.04728) in the form that Oyama et al. 2020 (arXiv 2007.12856) train.

From volumes of 4 x W x W x W, W = 128, 256, 512, it predicts 4 numbers of a universe. log2(W) - 2 blocks of a 3 x 3 x 3
convolution, leaky ReLU (0.3) and average pooling 3/2/1 leave 4 x 4 x 4; linear layers to 2048, 256 and 4 follow. The
convolutions make 16, 32, 64, 128, 256 channels, and 256 from there on, as in the authors' code (LBANN,
applications/physics/cosmology/cosmoflow). That has dropout between the linear layers (here an option), takes the
logarithm of its input and the tanh of its output, which are left out. The batch is ours.

`512` has the 9 438 644 parameters that the paper counts: 4 716 720 of seven convolutions, and linear layers behind 2 x
2 x 2 voxels, so another layer halves. Here the last convolution does it (`stride=2`). With `stride=1`, as in `128` and
`256`, which are those of LBANN's code, it leaves 4 x 4 x 4 and has 38.8 million.
"""

from itertools import pairwise
from typing import ClassVar

from ssdsl.model.load.spec import option_text
from ssdsl.model.zoo.family import ModelFamily, ModelSize

CHANNELS, TARGETS = 4, 4
LEFT = 4  # voxels that the last pooling leaves along each axis, if no convolution has a stride


class Cosmoflow(ModelSize):
    """The numbers of a CosmoFlow; the first convolution makes `base` channels, each next one doubles them up to `most`.

    `stride` is that of the last convolution. `statistics` is the number of equal parts of the batch that have their own
    statistics in batch norm.
    """

    NET: ClassVar = "cosmoflow:CosmoFlowNet"
    SUMMARY: ClassVar = "4 x {width}^3 voxels, {size.blocks} convolutions, hidden {hidden}"
    AXES: ClassVar = {"volume": ("batch", "channel", "depth", "height", "width"), "target": ("batch", "target")}
    width: int
    batch: int
    base: int = 16
    most: int = 256
    stride: int = 1
    hidden: tuple[int, ...] = (2048, 256)
    norm: str = "none"
    dropout: float = 0.0
    statistics: int = 1
    dtype: str = "fp32"

    def problem(self) -> str:
        if self.width < 2 * LEFT or self.width & (self.width - 1):
            return f"width = {self.width} is no power of two from {2 * LEFT} on"
        if LEFT % self.stride:
            return f"stride = {self.stride} has to be 1, 2 or {LEFT}"
        if len(self.hidden) != 2:
            return f"hidden = {option_text(self.hidden)} is not two widths, such as 2048-256"
        return super().problem()

    @property
    def blocks(self) -> int:
        return (self.width // LEFT).bit_length() - 1

    def channels(self) -> list[tuple[int, int]]:
        """Channels in and out of each convolution."""
        return list(pairwise([CHANNELS, *(min(self.base << block, self.most) for block in range(self.blocks))]))

    def connected(self) -> list[tuple[int, int]]:
        """Numbers in and out of each linear layer."""
        return list(pairwise([self.channels()[-1][1] * (LEFT // self.stride) ** 3, *self.hidden, TARGETS]))


SIZES = {
    "tiny": Cosmoflow(width=16, batch=8, base=8, hidden=(64, 32)),
    "128": Cosmoflow(width=128, batch=64),
    "256": Cosmoflow(width=256, batch=64),
    "512": Cosmoflow(width=512, batch=64, stride=2),
}
FAMILY = ModelFamily("CosmoFlow, 4 numbers of a volume, squared error", SIZES)
