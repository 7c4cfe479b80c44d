"""Argus-3D, shapes from points, in two stages (Qian et al. 2024, arXiv 2402.12225; Wang et al. 2023, 2306.11510).

It scales ImAM (Luo et al. 2023, arXiv 2303.14700); numbers are those of its code (FVPLab/Argus-3D, configs/stage2.yaml
and its quantizer), with 1024 tokens of 8192 codes for a shape.

- `codebook` makes tokens: 30 000 points get 32 features each, whose means lie on three planes of 256 x 256.
  Convolutions join and halve them to 32 x 32 vectors of 512 numbers; of these 4 are compared with the codes, and the
  nearest code takes their place. Its gradient goes to the vector (straight-through). Convolutions and a U-Net of 4
  levels make three planes again; a query reads each by linear interpolation and says whether it is inside. The loss is
  binary cross-entropy, plus the distance of vectors from their codes, plus 0.4 x that of codes from vectors.
- `prior` is a GPT that predicts a shape's tokens, one after another, from its category: 32 layers of 3072 with 24
  heads, 3.65 billion parameters. The batches and the 55 categories, those of ShapeNet, are ours.

The first stage is smaller than theirs. Points have two linear layers here, in place of five residual blocks with local
pooling; the one U-Net sees the three planes together, where theirs sees one at a time, and has another in front of the
doublings. The weights of the prior's scores are its embedding.
"""

from itertools import pairwise
from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

PLANES = 3


class ArgusCodebook(ModelSize):
    """The numbers of the first stage; planes have `resolution` cells along each side, and are halved `halvings` times.

    A vector has `width` numbers and a code `reduced`; the U-Net has `levels`, the layers for queries `hidden` numbers.
    """

    NET: ClassVar = "argus:ArgusCodebookNet"
    SUMMARY: ClassVar = "{points} points, 3 x {resolution}^2, {size.tokens} of {codes} codes"
    AXES: ClassVar = {
        "points": ("batch", "point", "coordinate"),
        "queries": ("batch", "query", "coordinate"),
        "occupancy": ("batch", "query"),
    }
    points: int
    queries: int
    resolution: int
    features: int
    halvings: int
    width: int
    codes: int
    levels: int
    hidden: int
    batch: int
    reduced: int = 4
    dtype: str = "fp32"

    def problem(self) -> str:
        parts = 1 << max(self.halvings, self.levels - 1)
        if self.resolution % parts:
            return f"resolution = {self.resolution} is no multiple of {parts}: it is halved between levels"
        return super().problem()

    @property
    def tokens(self) -> int:
        return (self.resolution >> self.halvings) ** 2

    def downwards(self) -> list[tuple[int, int]]:
        """Channels in and out of the convolutions that halve."""
        return list(pairwise(self.features << step for step in range(self.halvings + 1)))

    def upwards(self) -> list[tuple[int, int]]:
        """Channels in and out of the convolutions behind each doubling."""
        return list(pairwise([self.width, *(self.features << step for step in reversed(range(self.halvings)))]))

    def widths(self) -> list[int]:
        """Channels of the levels of the U-Net."""
        return [self.features << level for level in range(self.levels)]


class ArgusPrior(ModelSize):
    """The numbers of the second stage; `seq` are the tokens of a shape, `classes` the categories."""

    NET: ClassVar = "argus:ArgusPriorNet"
    SUMMARY: ClassVar = "{layers} layers, hidden {hidden}, {heads} heads, seq {seq}, {codes} codes"
    AXES: ClassVar = {"tokens": ("batch", "seq"), "category": ("batch",)}
    layers: int
    hidden: int
    heads: int
    seq: int
    codes: int
    classes: int
    batch: int
    dtype: str = "fp32"


SIZES: dict[str, ModelSize] = {
    "tiny": ArgusCodebook(
        64, queries=32, resolution=16, features=8, halvings=2, width=16, codes=32, levels=2, hidden=16, batch=8
    ),
    "tiny-prior": ArgusPrior(layers=2, hidden=32, heads=4, seq=16, codes=32, classes=4, batch=8),
    "codebook": ArgusCodebook(
        30_000,
        queries=2048,
        resolution=256,
        features=32,
        halvings=3,
        width=512,
        codes=8192,
        levels=4,
        hidden=32,
        batch=64,
    ),
    "prior": ArgusPrior(layers=32, hidden=3072, heads=24, seq=1024, codes=8192, classes=55, batch=256),
}
FAMILY = ModelFamily(
    "Argus-3D, a codebook of shapes from points, and a GPT over its tokens", SIZES, ("tiny", "tiny-prior")
)
