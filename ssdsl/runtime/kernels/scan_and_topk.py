"""Kernels of parts: running sums and products, and the largest elements, along a split axis.

Part 0 is the first along the dimension; parts may have unequal sizes. The running sum before a part is the sum of the
totals of earlier parts. Half precision is accumulated in float32, as in torch's kernels.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..ranks.world import Group
from .own_gradient import with_gradient
from .softmax_and_max import HALVES, limit_of, widened


def _own_part(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    if not ctx.shared:
        given = given.clone(memory_format=torch.contiguous_format)
        ctx.group.all_reduce(given)
    return given[ctx.part]


@with_gradient(_own_part)
def listed(ctx: Any, x: torch.Tensor, part: int, group: Group, shared: bool = False) -> torch.Tensor:
    """Gathers every part's result, in the order of the parts: [...] -> [parts, ...], the same on every rank.

    `shared`: all ranks compute the same from it, so each has the whole gradient of its own part. Otherwise the gradient
    of a part is the sum of the ranks' gradients.
    """
    ctx.part, ctx.group, ctx.shared = part, group, shared
    every = x.new_zeros(group.size, *x.shape)
    every[part] = x
    group.all_reduce(every)
    return every


Combine = Callable[[torch.Tensor, Any], torch.Tensor]


def _scanned(
    x: torch.Tensor, dim: int, part: int, group: Group, scan: Combine, total: Combine, join: Combine
) -> torch.Tensor:
    """This part of a scan along `dim`: that of its own elements, joined with the total of all parts before it."""
    mine = scan(widened(x), dim)
    before = total(listed(mine.select(dim, -1), part, group)[:part], 0)
    found = join(mine, before.unsqueeze(dim))
    return found.to(x.dtype) if x.dtype in HALVES else found


def cumsum_parts(x: torch.Tensor, dim: int, part: int, group: Group, dtype: torch.dtype | None = None) -> torch.Tensor:
    """This part of the running sum along `dim`; `x` is this part of the input."""
    return _scanned(x if dtype is None else x.to(dtype), dim, part, group, torch.cumsum, torch.sum, torch.add)


def cumprod_parts(x: torch.Tensor, dim: int, part: int, group: Group, dtype: torch.dtype | None = None) -> torch.Tensor:
    """This part of the running product along `dim`; `x` is this part of the input."""
    return _scanned(x if dtype is None else x.to(dtype), dim, part, group, torch.cumprod, torch.prod, torch.mul)


def logcumsumexp_parts(x: torch.Tensor, dim: int, part: int, group: Group) -> torch.Tensor:
    """This part of the logarithm of the running sum of exponentials along `dim`; `x` is this part of the input."""
    return _scanned(x, dim, part, group, torch.logcumsumexp, torch.logsumexp, torch.logaddexp)


def topk_parts(
    x: torch.Tensor, k: int, dim: int, largest: bool, start: int, part: int, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest elements along `dim` over all parts, and their positions; the same on every rank.

    Of equal elements those in the first parts are taken; torch leaves open which of them within a part.
    """
    mine, at = x.topk(min(k, x.shape[dim]), dim, largest)
    missing = k - mine.shape[dim]
    padding = torch.nan if x.is_floating_point() and not largest else limit_of(x.dtype, least=not largest)
    mine, at = _longer(mine, missing, dim, padding), _longer(at + start, missing, dim, -1)  # torch sorts NaN above all
    values = _joined(listed(mine, part, group, shared=True), dim)
    places = _joined(listed(at, part, group, shared=True), dim)
    first = (places < 0).to(torch.int8).argsort(stable=True, dim=dim)  # padding behind its equals
    order = values.detach().gather(dim, first).argsort(stable=True, dim=dim, descending=largest).narrow(dim, 0, k)
    chosen = first.gather(dim, order)
    return values.gather(dim, chosen), places.gather(dim, chosen)


def _longer(x: torch.Tensor, missing: int, dim: int, value: float) -> torch.Tensor:
    if not missing:
        return x
    shape = [*x.shape]
    shape[dim] = missing
    return torch.cat([x, x.new_full(shape, value)], dim)


def _joined(every: torch.Tensor, dim: int) -> torch.Tensor:
    """Concatenates the parts along `dim`: [parts, ..., n, ...] -> [..., parts * n, ...]."""
    dim %= every.dim() - 1
    return every.movedim(0, dim).flatten(dim, dim + 1)
