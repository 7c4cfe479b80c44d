"""Kernels of parts: resampling to another size along split axes. Parts and regions are as in `windows.py`."""

from collections.abc import Sequence

import torch

from ..ranks.numbers import on_device
from . import resampling_weights
from .windows import Part, along

aten = torch.ops.aten


def nearest_part(
    space: int,
    x: torch.Tensor,
    parts: Sequence[Part],
    output_size: Sequence[int] | None = None,
    scale_factors: Sequence[float] | None = None,
) -> torch.Tensor:
    """Nearest-neighbour resampling. Uses torch's kernel along whole axes, and where every position is copied equally
    often."""
    scaled = _Scaled(x, space, output_size, scale_factors, parts)
    for part, results, factor in scaled.parts():
        if not resampling_weights.is_even(part.size, results, factor):
            sources = resampling_weights.nearest(part.size, results, factor)
            positions = [p - part.first for p in sources[part.start : part.end]]
            x = x.index_select(part.axis, on_device(positions, x.device))
            scaled.is_done(part)
    resize = (aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d)[space - 1]
    return scaled.cut(resize(x, scaled.sizes(x), *scaled.factors))


def linear_part(
    space: int,
    x: torch.Tensor,
    align_corners: bool,
    parts: Sequence[Part],
    output_size: Sequence[int] | None = None,
    scale_factors: Sequence[float] | None = None,
) -> torch.Tensor:
    """Linear interpolation. Uses torch's kernel along whole axes, and where torch rounds alike at every position
    (factors that are powers of two)."""
    scaled, dtype = _Scaled(x, space, output_size, scale_factors, parts), x.dtype
    for part, results, factor in scaled.parts():
        times = results // part.size
        if align_corners or results % part.size or times & (times - 1) or factor not in (None, times):
            is_double = dtype == torch.float64
            places = resampling_weights.linear(part.size, results, align_corners, factor, is_double=is_double)
            places = places[part.start : part.end]
            low, high = (on_device([p[k] - part.first for p in places], x.device) for k in (0, 1))
            x = x.to(torch.promote_types(dtype, torch.float32))
            weight = along(x, part.axis, [p.weight for p in places])
            x = x.index_select(part.axis, low) * (1 - weight) + x.index_select(part.axis, high) * weight
            scaled.is_done(part)
    resize = (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d)[space - 1]
    return scaled.cut(resize(x, scaled.sizes(x), align_corners, *scaled.factors)).to(dtype)


class _Scaled:
    """The axes of space that are resampled: their new sizes, and which of them are still to be done."""

    def __init__(
        self,
        x: torch.Tensor,
        space: int,
        output_size: Sequence[int] | None,
        factors: Sequence[float] | None,
        parts: Sequence[Part],
    ) -> None:
        self.first = x.dim() - space
        self.left = {part.axis: part for part in parts}
        self.factors: list[float | None] = [*factors] if factors else [None] * space
        self.done: set[int] = set()
        if output_size is None:
            assert factors is not None, "a size or factors are given"
            sizes = (self.left[k].size if k in self.left else x.shape[k] for k in range(self.first, x.dim()))
            output_size = [int(n * factor) for n, factor in zip(sizes, factors, strict=True)]
        self.whole = [*output_size]

    def parts(self) -> list[tuple[Part, int, float | None]]:
        """Each part with the size of its whole axis of results, and its factor."""
        return [
            (part, self.whole[axis - self.first], self.factors[axis - self.first]) for axis, part in self.left.items()
        ]

    def is_done(self, part: Part) -> None:
        self.done.add(part.axis)

    def sizes(self, x: torch.Tensor) -> list[int]:
        """The size of each axis after resampling the input at hand: finished axes keep their size, and a region grows
        by the factor of its whole axis. Sets the `factors` of split axes to None, as they are not those of a region."""
        sizes = [*self.whole]
        for axis, part in self.left.items():
            at = axis - self.first
            sizes[at] = x.shape[axis] if axis in self.done else x.shape[axis] * (self.whole[at] // part.size)
            self.factors[at] = None
        return sizes

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """Cuts the parts out of the results."""
        for axis, part in self.left.items():
            if axis not in self.done:
                times = self.whole[axis - self.first] // part.size
                x = x.narrow(axis, part.start - part.first * times, part.end - part.start)
        return x.contiguous()
