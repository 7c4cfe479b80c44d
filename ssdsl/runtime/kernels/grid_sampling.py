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
    with torch.enable_grad():
        points = grid.detach().requires_grad_(x is not None)
        at = _positions(points, padding, align_corners, ctx.places)
        corners = list(_corners(at, interpolation, ctx.shape[2:], ctx.places))
    given = gradient.flatten(2).to(at[0].dtype)
    of_x = given.new_zeros(*ctx.shape[:2], ctx.shape[2:].numel()) if ctx.needs_input_grad[0] else None
    of_weights: dict[torch.Tensor, torch.Tensor] = {}
    for index, weight in corners:
        if of_x is not None:
            of_x.scatter_add_(2, _of_channels(index, of_x), given * weight.detach())
        if weight.requires_grad:
            flat = x.flatten(2)
            read = flat.gather(2, _of_channels(index, flat)).to(given.dtype)
            of_weights[weight] = (read * given).sum(1, keepdim=True)
    of_grid = None if x is None else torch.zeros_like(grid)
    if of_weights:
        (of_grid,) = torch.autograd.grad([*of_weights], points, [*of_weights.values()])
    return None if of_x is None else of_x.view(ctx.shape).to(gradient.dtype), of_grid


@with_gradient(_sample_gradients)
def grid_sample_part(
    ctx: Any,
    x: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    places: Places,
) -> torch.Tensor:
    """Samples the part x [batch, channels, *space] at points: bilinear, trilinear or nearest.

    grid [batch, *points, axes of space from the last to the first], from -1 to 1 in the whole ->
    [batch, channels, *points]. Parts add up. Backward keeps the points, and x if these have a gradient; what is around
    a point is found again there.
    """
    ctx.save_for_backward(grid, x if ctx.needs_input_grad[1] else None)
    ctx.shape, ctx.how, ctx.places = x.shape, (interpolation_mode, padding_mode, align_corners), places
    at = _positions(grid, padding_mode, align_corners, places)
    flat, wide = x.flatten(2), at[0].dtype
    result = torch.zeros(*x.shape[:2], at[0].shape[1], dtype=wide, device=x.device)
    for index, weight in _corners(at, interpolation_mode, x.shape[2:], places):
        result += flat.gather(2, _of_channels(index, flat)).to(wide) * weight
    return result.to(x.dtype).view(*x.shape[:2], *grid.shape[1:-1])


def _positions(grid: torch.Tensor, padding: int, align_corners: bool, places: Places) -> list[torch.Tensor]:
    """The points' positions [batch, points] in the whole, for each axis of space."""
    wide = grid.to(torch.promote_types(grid.dtype, torch.float32)).flatten(1, -2)
    return [_position(wide[..., -1 - axis], size, padding, align_corners) for axis, (_, size) in enumerate(places)]


def _position(at: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Positions on an axis of this size, of numbers from -1 to 1: outside of it, `padding` puts them on the border,
    where they have no gradient, or reflects them."""
    scale, low = ((size - 1) / 2, 0.0) if align_corners else (size / 2, -0.5)
    at = (at + 1) * scale + low
    if padding == REFLECTION:
        at = _reflected(at, low, size - 1 - 2 * low)
    if padding in (BORDER, REFLECTION):
        at = torch.where((at > 0) & (at < size - 1), at, at.detach().clamp(0, size - 1))
    return at


def _reflected(at: torch.Tensor, low: float, span: float) -> torch.Tensor:
    """Positions as mirrors at `low` and at low + span show them."""
    if span == 0:
        return torch.zeros_like(at)
    away = (at - low).abs()
    flips, rest = (away / span).floor(), away.fmod(span)
    return torch.where(flips.remainder(2) == 1, span - rest, rest) + low


class _Side(NamedTuple):
    """The grid points on one side of the points, along an axis: where they are in the part, and their weights."""

    local: torch.Tensor
    weight: torch.Tensor


def _corners(
    at: list[torch.Tensor], interpolation: int, shape: Sequence[int], places: Places
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields for each grid point around the points its index [batch, points] in the part, of this shape in space, and
    its weight [batch, 1, points]. What is not in the part is index 0, with weight 0."""
    by_axis = [_sides(each, interpolation, n, start) for each, n, (start, _) in zip(at, shape, places, strict=True)]
    for corner in itertools.product(*by_axis):
        index = torch.zeros_like(at[0], dtype=torch.int64)
        for side, n in zip(corner, shape, strict=True):
            index = index * n + side.local
        yield index, math.prod((side.weight for side in corner[1:]), start=corner[0].weight).unsqueeze(1)


def _sides(at: torch.Tensor, interpolation: int, n: int, start: int) -> list[_Side]:
    """The sides along an axis of which the part has `n` positions from `start`."""
    if interpolation == NEAREST:
        found = [(at.round(), torch.ones_like(at))]
    else:
        floor = at.floor()
        found = [(floor, floor + 1 - at), (floor + 1, at - floor)]
    sides = []
    for position, weight in found:
        inside = (position >= start) & (position < start + n)
        local = (position - start).masked_fill(~inside, 0).long()
        sides.append(_Side(local, weight.masked_fill(~inside, 0)))
    return sides


def _of_channels(index: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """The index [batch, points] for each channel of a tensor [batch, channels, positions]."""
    return index.unsqueeze(1).expand(-1, flat.shape[1], -1)
