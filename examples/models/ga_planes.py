"""GA-Planes (Sivgin et al. 2024, arXiv 2411.13525): a function of points in a cube, from features on grids.

Three lines, three planes and a volume hold `features` numbers at each of their grid points, the basis elements of a
geometric algebra: e1, e2, e3, e12, e13, e23, e123. A point reads each by linear interpolation; the seven are put one
behind another (`combine=concat`), added (`sum`) or multiplied (`product`). From these a decoder makes one number:

- `linear`: a sum with weights, in which the whole model is convex unless features are multiplied;
- `convex`: the paper's gated decoder, `hidden` sums, each of which counts where a fixed random one is positive; the
  fixed ones read grids that are not trained. With either the grids or the weights given, it is convex in the other;
- `relu`: a layer of `hidden` ReLU and a sum with weights.

The tasks are small ones with an answer in closed form: `regression` of a product of waves (squared error), and
`segmentation` of a torus (whether a point is inside, binary cross-entropy). A sample is a point. The model has 3.2
million parameters; the paper's have a few million as well, in sizes that differ by task.
"""

from itertools import combinations
from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

SPACE = 3  # dimensions


class GaPlanes(ModelSize):
    """The numbers of a GA-Planes model; `line`, `plane` and `volume` are grid points along each side."""

    NET: ClassVar = "ga_planes:GaPlanesNet"
    SUMMARY: ClassVar = "lines {line}, planes {plane}^2, volume {volume}^3, {features} features, {combine}, {decoder}"
    AXES: ClassVar = {"points": ("batch", "coordinate"), "target": ("batch",)}
    line: int
    plane: int
    volume: int
    features: int
    hidden: int
    batch: int
    combine: str = "concat"
    decoder: str = "relu"
    task: str = "regression"
    dtype: str = "fp32"

    def elements(self) -> dict[tuple[int, ...], int]:
        """For the axes of each basis element its grid points along each side."""
        sides = (self.line, self.plane, self.volume)
        return {axes: side for n, side in enumerate(sides, 1) for axes in combinations(range(SPACE), n)}

    @property
    def combined(self) -> int:
        """Numbers of a point that the decoder gets."""
        return self.features * (len(self.elements()) if self.combine == "concat" else 1)


SIZES = {
    "3.2m": GaPlanes(line=132, plane=132, volume=36, features=32, hidden=64, batch=4096),
    "tiny": GaPlanes(line=8, plane=8, volume=4, features=8, hidden=16, batch=64),
}
FAMILY = ModelFamily("GA-Planes, a function of points, from lines, planes and a volume", SIZES, ("3.2m", "tiny"))
