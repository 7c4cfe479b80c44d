"""Reading and writing at indices, of a part of a tensor that is cut along the axes that the indices count along.

A part has some of the positions that are read, and zeros for the others: parts add up. Of what is written a part takes
what falls into it, and needs nothing of the others.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..ranks.world import Group
from .embedding_and_norm import in_part
from .own_gradient import Gradients, with_gradient
from .softmax_and_max import largest, limit_of


def index_part(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], places: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """x[i, j, ...] of a part x, which on each axis begins at a place of the whole size. Parts add up."""
    given = [*indices, *[None] * (x.dim() - len(indices))]
    local: list[torch.Tensor | None] = []
    outside: Any = None
    for index, n, (start, size) in zip(given, x.shape, places, strict=True):
        if index is None:
            local.append(None)
            continue
        here, gone = in_part(torch.where(index < 0, index + size, index), n, start, size)
        local.append(here)
        outside = gone if outside is None else outside | gone
    return _indexed(x, outside, *local)


def index_select_part(x: torch.Tensor, dim: int, index: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """index_select by an index [n] along an axis of `size` that is split. This part has positions from `start`;
    elements of other parts are zeros, so that parts add up."""
    local, outside = in_part(index, x.shape[dim], start, size)
    return _indexed(x, outside, *[None] * (dim % x.dim()), local)


def select_part(x: torch.Tensor, dim: int, index: int, start: int, size: int) -> torch.Tensor:
    """The position `index` of an axis of `size` that is split, if this part, which begins at `start`, has it; zeros if
    not. Parts add up."""
    local = index % size - start
    own = x.narrow(dim, local, 1) if 0 <= local < x.shape[dim] else x.narrow(dim, 0, 0)
    return own.sum(dim, dtype=x.dtype)


def scatter_add_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, start: int, size: int
) -> torch.Tensor:
    """Adds elements of src to a part x at the positions that the index gives them, as scatter_add does. Axis `dim` has
    `size` positions in the whole, and x those from `start`; elements for other parts are left out."""
    local, outside = in_part(index, x.shape[dim], start, size)
    added = src[tuple(map(slice, index.shape))].masked_fill(outside, 0)
    return x.scatter_add(dim, local, added)


def scatter_reduce_part(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool,
    start: int,
    size: int,
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces elements of src into a part x, as scatter_reduce does; otherwise like `scatter_add_part`.

    With `group` each of its ranks has a part of index and src, for `amax` and `amin` only: the result is that of all
    parts. Other reductions send the elements of other parts, as zeros, to a position behind the last one, which is then
    cut off."""
    if reduce in ("amax", "amin"):
        points = src[tuple(map(slice, index.shape))]
        is_least = reduce == "amin"
        return _reduced(x, points, index, dim, start, size, is_least, include_self, group)
    n = x.shape[dim]
    local, outside = in_part(index, n, start, size)
    reduced = src[tuple(map(slice, index.shape))].masked_fill(outside, 0)
    longer = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
    found = longer.scatter_reduce(dim, local.masked_fill_(outside, n), reduced, reduce, include_self=include_self)
    return found.narrow(dim, 0, n).clone(memory_format=torch.contiguous_format)  # no view of what autograd keeps


def index_add_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, alpha: float, start: int, size: int
) -> torch.Tensor:
    """Adds slices of source, times alpha, to a part x at the positions in the index [n], as index_add does."""
    local, outside = in_part(index.long(), x.shape[dim], start, size)
    along = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    added = (source if alpha == 1 else source * alpha).masked_fill(outside.view(along), 0)
    return x.scatter_add(dim, local.view(along).expand(source.shape), added)


def _reduced_gradients(ctx: Any, given: torch.Tensor) -> Gradients:
    x, points, index, result = ctx.saved_tensors
    local, outside = in_part(index, x.shape[ctx.dim], ctx.start, ctx.size)
    chosen = (points == result.gather(ctx.dim, local)).masked_fill_(outside, False).to(given.dtype)
    count = torch.zeros_like(result).scatter_add_(ctx.dim, local, chosen)
    if ctx.group is not None:
        ctx.group.all_reduce(count)
    own = x == result  # as in torch, it counts where it is not included, too
    each = given / (count + own)
    of_points = chosen.mul_(each.gather(ctx.dim, local)).masked_fill_(outside, 0)
    if not ctx.included:
        own &= count == 0
    if ctx.group is not None and ctx.group.index:  # the parts' gradients of x add up
        own = torch.zeros_like(own)
    return torch.where(own, each, 0), of_points


@with_gradient(_reduced_gradients)
def _reduced(
    ctx: Any,
    x: torch.Tensor,
    points: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    start: int,
    size: int,
    least: bool,
    included: bool,
    group: Group | None,
) -> torch.Tensor:
    """The largest or least of the points of all parts that fall into a position, and of what is there if it is
    `included`; all that tie share the gradient. A position that nothing falls into stays as it is."""
    local, outside = in_part(index, x.shape[dim], start, size)
    last, reduce = limit_of(x.dtype, least), "amin" if least else "amax"
    order = torch.contiguous_format
    result = x if included else torch.full_like(x, last, memory_format=order)
    result = result.scatter_reduce(dim, local, points.masked_fill(outside, last), reduce)
    if included:
        result = result if group is None else largest(result, group, least)
    else:
        hit = torch.zeros_like(x, memory_format=order).scatter_reduce(dim, local, (~outside).to(x.dtype), "amax")
        if group is not None:
            result, hit = largest(torch.stack([result, -hit if least else hit]), group, least)
        result = torch.where(hit != 0, result, x).contiguous()
    ctx.save_for_backward(x, points, index, result)
    ctx.dim, ctx.start, ctx.size, ctx.included, ctx.group = dim, start, size, included, group
    return result


def _indexed(x: torch.Tensor, outside: torch.Tensor, *indices: torch.Tensor | None) -> torch.Tensor:
    """x[indices], and zeros where these are `outside`. Autograd keeps the indices and the mask alone."""
    result = torch.ops.aten.index.Tensor(x, indices)
    return result.masked_fill_(_beside(outside, result, indices), 0)  # type: ignore[no-any-return]


def _beside(outside: torch.Tensor, result: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The mask with axes of size one behind its own, so that it broadcasts to the result. As in PyTorch, the axes of
    the indices stand in the result where the first index stands, or in front if axes without index lie between
    indices."""
    found = [axis for axis, index in enumerate(indices) if index is not None]
    first = found[0] if found[-1] - found[0] == len(found) - 1 else 0
    return outside.view(*outside.shape, *[1] * (result.dim() - first - outside.dim()))
