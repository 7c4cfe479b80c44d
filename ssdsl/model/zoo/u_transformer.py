"""U-Transformer: a U-Net with attention that predicts the noise of a diffusion step, as Zhuang et al. 2022 train it.

The numbers are those of the paper (arXiv 2211.05322) and of its code (Alpa, `benchmark/alpa/suite_unet.py`): images of
32 x 32 with 3 channels, targets with 4, `base` channels of 320 to 672 that double twice, 8 heads. The architecture is
that of diffusion models with a condition (Rombach et al. 2021, arXiv 2112.10752): all levels but the lowest have a
transformer that attends to the image and to a context of 16 tokens, the lowest has two residual blocks on its way up.
Here a step has a number for each image, and all group norms have `groups` groups. The batch is that of the code.

Sizes have the names of the code's table; the largest has the 2.1 billion parameters of the paper.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

CHANNELS, TARGETS = 3, 4


@dataclass(frozen=True, slots=True)
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
        parts = [f"{word} = {n}" for word, n in (("heads", self.heads), ("groups", self.groups)) if self.base % n]
        return f"base = {self.base} is no multiple of {parts[0]}" if parts else ""

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

    def parameters(self) -> int:
        """The parameters of the way down and up, of both ends, and of the embedding of the step."""
        *upper, lowest = self.widths()
        down = sum(self._residual(a, w) + _resized(w) for a, w in zip([self.base, *upper], upper, strict=False))
        up = sum(self._residual(a, w) + _resized(w) for a, w in zip(self.given_upwards(), upper, strict=True))
        bottom = self._residual(upper[-1], lowest) + 2 * self._residual(lowest, lowest)
        bottom += 2 * self._residual(2 * lowest, lowest) + _resized(lowest) - _resized(self.base)
        attention = 2 * sum(map(self._transformer, upper)) + self._transformer(lowest)
        ends = (9 * CHANNELS + 1) * self.base + 2 * self.base + (9 * self.base + 1) * TARGETS
        embedding = (self.base + 1) * self.timed + (self.timed + 1) * self.timed
        return down + up + bottom + attention + ends + embedding

    def _residual(self, given: int, made: int) -> int:
        """Two norms and two convolutions with biases, the step's embedding, a convolution where the shape changes."""
        shortcut = (given + 1) * made if given != made else 0
        return 2 * (given + made) + (9 * (given + made) + 2) * made + (self.timed + 1) * made + shortcut

    def _transformer(self, width: int) -> int:
        """A group norm and two projections, three layer norms, two attentions, a gated feed-forward of 4 x width."""
        beside = 2 * width + 2 * (width + 1) * width + 6 * width
        attention = 2 * (2 * width + 1) * width + 2 * width**2 + 2 * self.widths()[-1] * width
        return beside + attention + 12 * width**2 + 9 * width


def _resized(width: int) -> int:
    """The convolution in front of which an image is halved, or behind which it is doubled."""
    return (9 * width + 1) * width


SIZES = {
    "tiny": UTransformer(base=16, image=8, batch=8, levels=3, heads=4),
    "470m": UTransformer(base=320, image=32, batch=256),
    "1b": UTransformer(base=480, image=32, batch=2048),
    "1.2b": UTransformer(base=512, image=32, batch=2048),
    "1.8b": UTransformer(base=640, image=32, batch=2048),
    "2b": UTransformer(base=672, image=32, batch=2048),
}
FAMILY = ModelFamily("U-Net with attention, the noise of a diffusion step, squared error", SIZES)
