"""Kernels of parts: running sums and products, and the largest elements, along a split axis.

Part 0 is the first along the dimension; parts may have unequal sizes. The running sum before a part is the sum of the
totals of earlier parts. Half precision is accumulated in float32, as in torch's kernels.
"""

from typing import Any

import torch

from ..ranks.world import Group
from .softmax_and_max import HALVES, widened


class _Listed(torch.autograd.Function):
    """Gathers every part's result, in the order of the parts: [...] -> [parts, ...], the same on every rank.

    `shared`: all ranks compute the same from it, so each has the whole gradient of its own part. Otherwise the gradient
    of a part is the sum of the ranks' gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, part: int, group: Group, shared: bool) -> torch.Tensor:
        ctx.part, ctx.group, ctx.shared = part, group, shared
        every = x.new_zeros(group.size, *x.shape)
        every[part] = x
        group.all_reduce(every)
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (given,) = gradients
        if not ctx.shared:
            given = given.clone(memory_format=torch.contiguous_format)
            ctx.group.all_reduce(given)
        return given[ctx.part], None, None, None


def _listed(x: torch.Tensor, part: int, group: Group, *, shared: bool = False) -> torch.Tensor:
    return _Listed.apply(x, part, group, shared)  # type: ignore[no-any-return, no-untyped-call]


def _wide(x: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.Tensor, torch.dtype | None]:
    """The numbers in the accumulation dtype, and the result's dtype if it is another (else None)."""
    x = x if dtype is None else x.to(dtype)
    return widened(x), x.dtype if x.dtype in HALVES else None


def _last(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.select(dim, -1)


def cumsum_parts(x: torch.Tensor, dim: int, part: int, group: Group, dtype: torch.dtype | None = None) -> torch.Tensor:
    """This part of the running sum along `dim`; `x` is this part of the input."""
    x, narrow = _wide(x, dtype)
    mine = x.cumsum(dim)
    before = _listed(_last(mine, dim), part, group)[:part].sum(0)
    return (mine + before.unsqueeze(dim)).to(narrow or mine.dtype)


def cumprod_parts(x: torch.Tensor, dim: int, part: int, group: Group, dtype: torch.dtype | None = None) -> torch.Tensor:
    """This part of the running product along `dim`; `x` is this part of the input."""
    x, narrow = _wide(x, dtype)
    mine = x.cumprod(dim)
    before = _listed(_last(mine, dim), part, group)[:part].prod(0)
    return (mine * before.unsqueeze(dim)).to(narrow or mine.dtype)


def logcumsumexp_parts(x: torch.Tensor, dim: int, part: int, group: Group) -> torch.Tensor:
    """This part of the logarithm of the running sum of exponentials along `dim`; `x` is this part of the input."""
    x, narrow = _wide(x, None)
    mine = x.logcumsumexp(dim)
    before = _listed(_last(mine, dim), part, group)[:part].logsumexp(0)
    return torch.logaddexp(mine, before.unsqueeze(dim)).to(narrow or mine.dtype)


def topk_parts(
    x: torch.Tensor, k: int, dim: int, largest: bool, start: int, part: int, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest elements along `dim` over all parts, and their positions; the same on every rank.

    Of equal elements those in the first parts are taken; torch leaves open which of them within a part.
    """
    mine, at = x.topk(min(k, x.shape[dim]), dim, largest)
    missing = k - mine.shape[dim]
    mine, at = _longer(mine, missing, dim, _worst(x.dtype, largest=largest)), _longer(at + start, missing, dim, -1)
    values = _joined(_listed(mine, part, group, shared=True), dim)
    places = _joined(_listed(at, part, group, shared=True), dim)
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


def _worst(dtype: torch.dtype, *, largest: bool) -> float:
    """The padding value: no element sorts behind it (torch sorts NaN above all numbers)."""
    if not dtype.is_floating_point:
        return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max
    return -torch.inf if largest else torch.nan
