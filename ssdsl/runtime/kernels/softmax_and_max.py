"""Kernels of parts: softmax, cross entropy and maxima along a split dimension. Parts share their maximum, then sums
relative to it.

Each part is a run of the dimension; parts may have unequal sizes. Half precision is accumulated in float32, as in
torch's kernels.
"""

from typing import Any

import torch

from ..ranks.world import Group
from .embedding_and_norm import check_range
from .own_gradient import with_gradient

HALVES = (torch.bfloat16, torch.float16)
Dims = int | list[int] | tuple[int, ...] | None


def widened(x: torch.Tensor) -> torch.Tensor:
    """The numbers in the accumulation dtype."""
    return x.float() if x.dtype in HALVES else x


def _axes(x: torch.Tensor, dim: Dims) -> list[int]:
    """The axes of a reduction as non-negative numbers; none given means all."""
    given = range(x.dim()) if dim is None or dim in ([], ()) else [dim] if isinstance(dim, int) else dim
    return sorted(d % x.dim() for d in given)


def _kept(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """Puts the reduced axes back with size one."""
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _sum(x: torch.Tensor, group: Group) -> torch.Tensor:
    x = x.contiguous()
    group.all_reduce(x)
    return x


def limit_of(dtype: torch.dtype, least: bool = False) -> float:
    """The least number of a type, with which a search for the largest begins; with `least`, the greatest."""
    if dtype.is_floating_point:
        return float("inf") if least else float("-inf")
    if dtype is torch.bool:
        return least
    return torch.iinfo(dtype).max if least else torch.iinfo(dtype).min


def largest(x: torch.Tensor, group: Group, least: bool = False) -> torch.Tensor:
    """The largest numbers of all parts, or the least ones; NaN, as in torch, if a part has NaN. It may write to x."""
    x = x.neg_() if least else x
    found = _as_integers(x) if x.is_floating_point() else x.contiguous()
    group.all_reduce(found, "max")
    found = _as_numbers(found, x.dtype) if x.is_floating_point() else found
    return found.neg_() if least else found


def _as_integers(x: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the numbers, with NaN above all: maxima of NCCL and gloo leave out a rank's NaN."""
    wide = widened(x).contiguous()
    bits = wide.masked_fill(wide.isnan(), float("nan"))  # a NaN without a sign
    return _mirrored(bits.view(torch.int64 if wide.dtype is torch.float64 else torch.int32))


def _as_numbers(integers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of type `dtype` that `_as_integers` was given."""
    wide = torch.float64 if integers.dtype is torch.int64 else torch.float32
    return _mirrored(integers).view(wide).to(dtype)


def _mirrored(bits: torch.Tensor) -> torch.Tensor:
    """Negative floats, as integers, in the opposite order, and the same the other way round."""
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _highest(x: torch.Tensor, axes: list[int], group: Group) -> torch.Tensor:
    """The maximum over all parts, to subtract before an exponential; zero where it is infinite. It may leave out NaN,
    which the sum of exponentials has."""
    highest = x.amax(axes, keepdim=True).contiguous()
    group.all_reduce(highest, "max")
    return highest.masked_fill_(highest.isinf(), 0.0)


# -- softmax -----------------------------------------------------------------------------------------------------------


def _softmax_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    (result,) = ctx.saved_tensors
    product = widened(given) * result
    total = _sum(product.sum(ctx.dim, keepdim=True), ctx.group)
    return product.sub_(total * result).to(result.dtype)  # type: ignore[no-any-return]


@with_gradient(_softmax_gradient)
def softmax_parts(ctx: Any, x: torch.Tensor, dim: int, group: Group, dtype: torch.dtype | None = None) -> torch.Tensor:
    """This part of a softmax along `dim`; `x` is this part of the scores."""
    x = x if dtype is None else x.to(dtype)
    wide = widened(x)
    exponents = (wide - _highest(wide, [dim], group)).exp_()
    result = exponents.div_(_sum(exponents.sum(dim, keepdim=True), group)).to(x.dtype)
    ctx.save_for_backward(result)
    ctx.dim, ctx.group = dim, group
    return result


def _log_softmax_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    (result,) = ctx.saved_tensors
    given = widened(given)
    total = _sum(given.sum(ctx.dim, keepdim=True), ctx.group)
    return (given - widened(result).exp().mul_(total)).to(result.dtype)


@with_gradient(_log_softmax_gradient)
def log_softmax_parts(
    ctx: Any, x: torch.Tensor, dim: int, group: Group, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """This part of a log-softmax along `dim`; `x` is this part of the scores."""
    x = x if dtype is None else x.to(dtype)
    wide = widened(x)
    shifted = wide - _highest(wide, [dim], group)
    total = _sum(shifted.exp().sum(dim, keepdim=True), group)
    result = shifted.sub_(total.log_()).to(x.dtype)
    ctx.save_for_backward(result)
    ctx.dim, ctx.group = dim, group
    return result


def _logsumexp_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    x, result = ctx.saved_tensors
    return (widened(x) - widened(_kept(result, ctx.axes))).exp_().mul_(_kept(given, ctx.axes)).to(x.dtype)


@with_gradient(_logsumexp_gradient)
def logsumexp_parts(ctx: Any, x: torch.Tensor, dim: Dims, keepdim: bool, group: Group) -> torch.Tensor:
    """The logarithm of the sum of exponentials over all parts; the same on every rank."""
    wide, axes = widened(x), _axes(x, dim)
    highest = _highest(wide, axes, group)
    total = _sum((wide - highest).exp_().sum(axes, keepdim=True), group)
    result = total.log_().add_(highest).to(x.dtype)
    result = result if keepdim else result.squeeze(axes)
    ctx.save_for_backward(x, result)
    ctx.axes = [] if keepdim else axes
    return result


# -- the largest -------------------------------------------------------------------------------------------------------


def _shared_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    x, result = ctx.saved_tensors
    chosen = (x == _kept(result, ctx.axes)).to(given.dtype)
    count = _sum(chosen.sum(ctx.reduced, keepdim=True), ctx.group)
    return chosen.mul_(_kept(given, ctx.axes) / count)  # type: ignore[no-any-return]


@with_gradient(_shared_gradient)
def amax_parts(ctx: Any, x: torch.Tensor, dim: Dims, keepdim: bool, group: Group, least: bool = False) -> torch.Tensor:
    """The largest element of all parts, or the `least`; the same on every rank. All that tie share the gradient."""
    axes = _axes(x, dim)
    found = x.amin(axes, keepdim=keepdim) if least else x.amax(axes, keepdim=keepdim)
    result = largest(found, group, least)
    ctx.save_for_backward(x, result)
    ctx.axes, ctx.reduced, ctx.group = [] if keepdim else axes, axes, group
    return result


def amin_parts(x: torch.Tensor, dim: Dims, keepdim: bool, group: Group) -> torch.Tensor:
    """The smallest element of all parts; the same on every rank."""
    return amax_parts(x, dim, keepdim, group, least=True)


def _first_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    (at,) = ctx.saved_tensors
    local = at - ctx.start
    if not ctx.keepdim:
        local, given = local.unsqueeze(ctx.dim), given.unsqueeze(ctx.dim)
    outside = (local < 0) | (local >= ctx.shape[ctx.dim])
    result = given.new_zeros(ctx.shape)
    return result.scatter_(ctx.dim, local.masked_fill(outside, 0), given.masked_fill(outside, 0.0))


@with_gradient(_first_gradient)
def max_parts(
    ctx: Any, x: torch.Tensor, dim: int, keepdim: bool, start: int, group: Group, least: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest element along `dim` over all parts, or the `least`, and the first position of it; the same on every
    rank. Of elements that tie, the first gets the gradient."""
    mine, at = x.min(dim, keepdim=keepdim) if least else x.max(dim, keepdim=keepdim)
    mine = mine.neg_() if least else mine
    most = largest(mine.clone(), group)
    nowhere = torch.iinfo(torch.int64).min
    at = largest(torch.where((mine == most) | mine.isnan(), -(at + start), nowhere), group).neg_()
    ctx.save_for_backward(at)
    ctx.mark_non_differentiable(at)
    ctx.dim, ctx.keepdim, ctx.start, ctx.shape = dim % x.dim(), keepdim, start, x.shape
    return most.neg_() if least else most, at


def min_parts(x: torch.Tensor, dim: int, keepdim: bool, start: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest element along `dim` over all parts, and the first position of it; the same on every rank."""
    return max_parts(x, dim, keepdim, start, group, least=True)


def argmax_parts(x: torch.Tensor, dim: int, keepdim: bool, start: int, group: Group) -> torch.Tensor:
    """The first position of the largest element over all parts; the same on every rank."""
    return max_parts(x.detach(), dim, keepdim, start, group)[1]


def argmin_parts(x: torch.Tensor, dim: int, keepdim: bool, start: int, group: Group) -> torch.Tensor:
    """The first position of the smallest element over all parts; the same on every rank."""
    return min_parts(x.detach(), dim, keepdim, start, group)[1]


# -- cross entropy -----------------------------------------------------------------------------------------------------


def _cross_entropy_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    softmax, local, mine, counts, *smoothed = ctx.saved_tensors
    result = softmax * (given * counts).unsqueeze(1)
    result.scatter_add_(1, local.unsqueeze(1), -(given * mine).unsqueeze(1).to(result.dtype))
    if smoothed:
        valid, classes = smoothed
        each = (ctx.each * given * valid).unsqueeze(1)
        result -= each if classes is None else each * classes
    return result.to(softmax.dtype)  # type: ignore[no-any-return]


@with_gradient(_cross_entropy_gradient)
def _label_losses(
    ctx: Any,
    logits: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None,
    start: int,
    size: int,
    ignored: int,
    smoothing: float,
    group: Group,
) -> torch.Tensor:
    """Megatron's vocabulary-parallel cross entropy (Shoeybi et al. 2019, section 3), with weights and smoothing.

    With q the target distribution times the classes' weights, the loss of a token is sum(q) logsumexp(x) - sum(q x).
    """
    wide = widened(logits)
    shifted = wide - _highest(wide, [1], group)
    local = labels - start
    outside = (local < 0) | (local >= logits.shape[1])
    local = local.masked_fill(outside, 0)
    valid, each = labels != ignored, smoothing / size
    mine = (~outside).to(wide.dtype) if weight is None else weight[local].masked_fill(outside, 0.0)
    mine = mine * (1 - smoothing)  # of q, at the label
    score = shifted.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(outside, 0.0) * mine
    classes = None if weight is None else weight.view(-1, *[1] * (logits.dim() - 2))
    if smoothing:
        score += each * (shifted if classes is None else shifted * classes).sum(1)
    exponents = shifted.exp_()
    amount = [] if weight is None else [mine + each * weight.sum()]  # without weights, q sums to one
    total, score, *found = _sum(torch.stack([exponents.sum(1), score, *amount]), group)
    counts = valid * found[0] if found else valid.to(wide.dtype)
    softmax = exponents.div_(total.unsqueeze(1)).to(logits.dtype)
    ctx.save_for_backward(softmax, local, mine * valid, counts, *([valid, classes] if smoothing else []))
    ctx.each = each
    return counts * total.log() - score * valid  # type: ignore[no-any-return]


@with_gradient(lambda ctx, given: given)
def _total(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over parts, the same on every rank; the gradient of the sum is that of each addend."""
    return _sum(x.clone(), group)


def cross_entropy_parts(
    logits: torch.Tensor,
    target: torch.Tensor,
    start: int,
    size: int,
    group: Group,
    weight: torch.Tensor | None = None,
    reduction: int = 2,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The cross entropy of logits [n, classes of this part, ...]; this part's first class is `start` of `size`.

    `target` are labels [n, ...], or probabilities of this part's classes; `weight` [classes of this part]. Returns a
    loss per label, or for `reduction` 2 their sum; the same on every rank.
    """
    if target.is_floating_point():
        chances = (1 - label_smoothing) * target + label_smoothing / size if label_smoothing else target
        classes = 1.0 if weight is None else weight.view(-1, *[1] * (logits.dim() - 2))
        products = chances * log_softmax_parts(logits, 1, group) * classes
        losses = -_total(products.sum(1), group)
    else:
        check_range(target.masked_fill(target == ignore_index, 0), size)
        losses = _label_losses(logits, target, weight, start, size, ignore_index, label_smoothing, group)
    return (losses.sum() if reduction == 2 else losses).to(logits.dtype)
