"""The windows of upsampling, from the same functions of the runtime that programs call."""

from dataclasses import dataclass

from ssdsl.model.dims.window import Run, hull
from ssdsl.runtime.kernels import resampling_weights


@dataclass(frozen=True, slots=True)
class Nearest:
    """Upsampling that copies the nearest position; `factor` is the scale that the call gives.

    >>> Nearest(4, 8, 2.0).needs(3, 8)
    (1, 4)
    """

    size: int
    results: int
    factor: float | None = None

    @property
    def is_even(self) -> bool:
        """Whether each position is copied equally often."""
        return resampling_weights.is_even(self.size, self.results, self.factor)

    def needs(self, start: int, end: int) -> Run:
        return hull(resampling_weights.nearest(self.size, self.results, self.factor)[start:end])


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear upsampling along one axis; bilinear and trilinear are one for each axis.

    >>> Linear(4, 8, align_corners=False, factor=2.0).needs(4, 8)       # result 4 lies between 1 and 2
    (1, 4)
    """

    size: int
    results: int
    align_corners: bool
    factor: float | None = None

    def needs(self, start: int, end: int) -> Run:
        places = resampling_weights.linear(self.size, self.results, self.align_corners, self.factor)[start:end]
        return hull(p for place in places for p in (place.first, place.second))
