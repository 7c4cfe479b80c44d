"""Interpolation at points, of one part of a plane or a volume that is cut along its axes of space.

A point reads the grid points around it. A part has some of them, and counts the others as zeros: what the parts give
adds up to what the whole gives, and so do their gradients of the points. The arithmetic of positions is that of
PyTorch's kernels (aten/src/ATen/native/GridSampler.h), so that all parts, and one device, agree on what is around.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .own_gradient import Gradients, with_gradient

NEAREST, BORDER, REFLECTION = 1, 1, 2  # as aten numbers the modes of interpolation and of padding
Places = Sequence[tuple[int, int]]  # for each axis of space, where the part begins and the size of the whole


def _sample_gradients(ctx: Any, gradient: torch.Tensor) -> Gradients:
    (grid, x), (interpolation, padding, align_corners) = ctx.saved_tensors, ctx.how
    at, slopes = _positions(grid, padding, align_corners, ctx.places)
    given = gradient.flatten(2).to(at[0].dtype)
    of_x = given.new_zeros(*ctx.shape[:2], ctx.shape[2:].numel()) if ctx.needs_input_grad[0] else None
    of_at = [torch.zeros_like(each) for each in at]
    for index, corner in _corners(at, interpolation, ctx.shape[2:], ctx.places):
        if of_x is not None:
            of_x.scatter_add_(2, _of_channels(index, of_x), given * _weight(corner))
        if x is not None and interpolation != NEAREST:
            flat = x.flatten(2)
            read = (flat.gather(2, _of_channels(index, flat)).to(given.dtype) * given).sum(1)
            for axis, each in enumerate(of_at):
                each += read * _slope(corner, axis)
    of_grid = None
    if x is not None:
        by_axis = [each * slope for each, slope in zip(of_at, slopes, strict=True)]
        of_grid = torch.stack(by_axis[::-1], -1).view(grid.shape).to(grid.dtype)
    return None if of_x is None else of_x.view(ctx.shape).to(gradient.dtype), of_grid


@with_gradient(_sample_gradients)
def grid_sample_part(
    ctx: Any,
    x: torch.Tensor,
    grid: torch.Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    places: Places,
) -> torch.Tensor:
    """What points read of the part x [batch, channels, *space], by bilinear or trilinear interpolation or the nearest.

    grid [batch, *points, axes of space from the last to the first], from -1 to 1 in the whole ->
    [batch, channels, *points]. Parts add up. Backward keeps the points, and x if these have a gradient; what is around
    a point is found again there.
    """
    ctx.save_for_backward(grid, x if ctx.needs_input_grad[1] else None)
    ctx.shape, ctx.how, ctx.places = x.shape, (interpolation, padding, align_corners), places
    at, _ = _positions(grid, padding, align_corners, places)
    flat, wide = x.flatten(2), at[0].dtype
    result = torch.zeros(*x.shape[:2], at[0].shape[1], dtype=wide, device=x.device)
    for index, corner in _corners(at, interpolation, x.shape[2:], places):
        result += flat.gather(2, _of_channels(index, flat)).to(wide) * _weight(corner)
    return result.to(x.dtype).view(*x.shape[:2], *grid.shape[1:-1])


def _positions(
    grid: torch.Tensor, padding: int, align_corners: bool, places: Places
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """For each axis of space the points' positions [batch, points] in the whole, and their slopes by the grid's
    numbers."""
    wide = grid.to(torch.promote_types(grid.dtype, torch.float32)).flatten(1, -2)
    found = [_position(wide[..., -1 - axis], size, padding, align_corners) for axis, (_, size) in enumerate(places)]
    return [at for at, _ in found], [slope for _, slope in found]


def _position(at: torch.Tensor, size: int, padding: int, align_corners: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions on an axis of this size, of numbers from -1 to 1, with their slopes: outside of it, `padding` puts them
    on the border or reflects them."""
    scale, low = ((size - 1) / 2, 0.0) if align_corners else (size / 2, -0.5)
    at = (at + 1) * scale + low
    slope = torch.full_like(at, scale)
    if padding == REFLECTION:
        at, turned = _reflected(at, low, size - 1 - 2 * low)
        slope = torch.where(turned, -slope, slope)
    if padding in (BORDER, REFLECTION):
        slope = slope.masked_fill((at <= 0) | (at >= size - 1), 0)
        at = at.clamp(0, size - 1)
    return at, slope


def _reflected(at: torch.Tensor, low: float, span: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions as mirrors at `low` and at low + span show them, and which ones run the other way."""
    if span == 0:
        return torch.zeros_like(at), torch.zeros_like(at, dtype=torch.bool)
    away = (at - low).abs()
    flips, rest = (away / span).floor(), away.fmod(span)
    is_odd = flips.remainder(2) == 1
    return torch.where(is_odd, span - rest, rest) + low, is_odd ^ (at < low)


class _Side(NamedTuple):
    """The grid points on one side of the points, along an axis: where they are in the part, whether they are in it,
    their weights and the slope of these by the position."""

    local: torch.Tensor
    inside: torch.Tensor
    weight: torch.Tensor
    slope: float


def _corners(
    at: list[torch.Tensor], interpolation: int, shape: Sequence[int], places: Places
) -> Iterator[tuple[torch.Tensor, tuple[_Side, ...]]]:
    """Yields for each grid point around the points its index [batch, points] in the part, of this shape in space, and
    its side along each axis. What is not in the part is index 0, with weight 0."""
    by_axis = [_sides(each, interpolation, n, start) for each, n, (start, _) in zip(at, shape, places, strict=True)]
    for corner in itertools.product(*by_axis):
        index = torch.zeros_like(at[0], dtype=torch.int64)
        for side, n in zip(corner, shape, strict=True):
            index = index * n + side.local
        yield index, corner


def _sides(at: torch.Tensor, interpolation: int, n: int, start: int) -> list[_Side]:
    """The sides along an axis of which the part has `n` positions from `start`."""
    if interpolation == NEAREST:
        found = [(at.round(), torch.ones_like(at), 0.0)]
    else:
        floor = at.floor()
        found = [(floor, floor + 1 - at, -1.0), (floor + 1, at - floor, 1.0)]
    sides = []
    for position, weight, slope in found:
        inside = (position >= start) & (position < start + n)
        local = (position - start).masked_fill(~inside, 0).long()
        sides.append(_Side(local, inside, weight.masked_fill(~inside, 0), slope))
    return sides


def _weight(corner: tuple[_Side, ...]) -> torch.Tensor:
    """The product of a corner's weights along all axes, [batch, 1, points]."""
    return math.prod((side.weight for side in corner[1:]), start=corner[0].weight).unsqueeze(1)


def _slope(corner: tuple[_Side, ...], axis: int) -> torch.Tensor:
    """The slope [batch, points] of that product by the position along one axis."""
    own = corner[axis].inside * corner[axis].slope
    return math.prod((side.weight for k, side in enumerate(corner) if k != axis), start=own)


def _of_channels(index: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """The index [batch, points] for each channel of a tensor [batch, channels, positions]."""
    return index.unsqueeze(1).expand(-1, flat.shape[1], -1)
