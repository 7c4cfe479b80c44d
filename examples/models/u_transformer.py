"""U-Transformer: a U-Net with attention that predicts the noise of a diffusion step, as Zhuang et al. 2022 train it.

The numbers are those of the paper (arXiv 2211.05322) and of its code (Alpa, `benchmark/alpa/suite_unet.py`): images of
32 x 32 with 3 channels, targets with 4, `base` channels of 320 to 672 that double twice, 8 heads. The architecture is
that of diffusion models with a condition (Rombach et al. 2021, arXiv 2112.10752): all levels but the lowest have a
transformer that attends to the image and to a context of 16 tokens, the lowest has two residual blocks on its way up.
Here a step has a number for each image, and all group norms have `groups` groups. The batch is that of the code.

Sizes have the names of the code's table; the largest has the 2.1 billion parameters of the paper.
"""

from itertools import pairwise
from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

CHANNELS, TARGETS = 3, 4


class UTransformer(ModelSize):
    """The numbers of a U-Transformer; the image is halved between `levels`, and channels double except at the last."""

    NET: ClassVar = "u_transformer:UTransformerNet"
    SUMMARY: ClassVar = "{levels} levels, {base} channels, {heads} heads, {image} px"
    AXES: ClassVar = {
        "image": ("batch", "channel", "height", "width"),
        "step": ("batch",),
        "context": ("batch", "token", "feature"),
        "target": ("batch", "target", "height", "width"),
    }
    base: int
    image: int
    batch: int
    levels: int = 4
    heads: int = 8
    groups: int = 4
    dtype: str = "fp32"

    def problem(self) -> str:
        if self.levels < 2:
            return f"levels = {self.levels} has to be 2 at least"
        if self.image % (1 << (self.levels - 1)):
            return f"image = {self.image} is no multiple of {1 << (self.levels - 1)}, as it is halved between levels"
        if self.base % 2:
            return f"base = {self.base} is odd: a step is embedded by pairs of sine and cosine"
        return super().problem()

    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.base << min(level, self.levels - 2) for level in range(self.levels)]

    @property
    def timed(self) -> int:
        """The width of the embedding of a step."""
        return 4 * self.base

    @property
    def tokens(self) -> int:
        """Tokens of the context: the pixels of the lowest level, and as wide."""
        return (self.image >> (self.levels - 1)) ** 2

    def given_upwards(self) -> list[int]:
        """Channels into the residual block of each level but the lowest on the way up: from below and from the skip."""
        return [width + below for width, below in pairwise(self.widths())]


SIZES = {
    "tiny": UTransformer(base=16, image=8, batch=8, levels=3, heads=4),
    "470m": UTransformer(base=320, image=32, batch=256),
    "1b": UTransformer(base=480, image=32, batch=2048),
    "1.2b": UTransformer(base=512, image=32, batch=2048),
    "1.8b": UTransformer(base=640, image=32, batch=2048),
    "2b": UTransformer(base=672, image=32, batch=2048),
}
FAMILY = ModelFamily("U-Net with attention, the noise of a diffusion step, squared error", SIZES)
