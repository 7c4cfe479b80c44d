"""Kernels of parts: embedding, gather, NLL loss, and normalisation along a split axis."""

from typing import Any

import torch
import torch.nn.functional as F

from ..ranks.numbers import has_numbers
from ..ranks.world import Group
from .own_gradient import Gradients, with_gradient


def check_range(index: torch.Tensor, size: int) -> None:
    """Raises IndexError for an index that one device, which has all `size` positions, would not find. A part alone
    would take it for another part's. On a GPU the step fails later, as with PyTorch's own checks."""
    found = ((index >= 0) & (index < size)).all()
    if not has_numbers(index):
        return
    if index.device.type != "cpu":
        torch._assert_async(found)
    elif not found:
        raise IndexError(
            f"{int(index.min())} to {int(index.max())} are given, out of range of the {size} that there are"
        )


def in_part(index: torch.Tensor, n: int, start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An index into `size` positions as one into the `n` from `start`, and where it points elsewhere: there it is
    0."""
    check_range(index, size)
    local = index - start
    outside = (local < 0) | (local >= n)
    return local.masked_fill_(outside, 0), outside


def embedding_part(ids: torch.Tensor, table: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Rows of a split vocabulary of `size`: this part has the rows from `start`, and returns zeros for the others. The
    parts' results add up.

    ids [...], table [rows of this part, hidden] -> [..., hidden].
    """
    local, outside = in_part(ids, table.shape[0], start, size)
    return F.embedding(local, table).masked_fill(outside.unsqueeze(-1), 0.0)


def _zeros(x: torch.Tensor) -> torch.Tensor:
    """Zeros with the strides of x. An addition then runs the same kernel as an addition to x, and gradients are equal
    to the bit."""
    return x.new_empty_strided(x.shape, x.stride()).zero_()


@with_gradient(lambda ctx, given: given)
def first(ctx: Any, x: torch.Tensor, *groups: Group) -> torch.Tensor:
    """An addend of a sum over ranks: only the first rank adds it, but every rank gets its whole gradient."""
    return x.view_as(x) if all(g.index == 0 for g in groups) else _zeros(x)


def first_time(x: torch.Tensor, *at: int) -> torch.Tensor:
    """An addend of a sum over parts that run one after another: only the first part adds it."""
    return _zeros(x) if any(at) else x


def _picked_gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    index, gone = ctx.saved_tensors
    return given.new_zeros(ctx.shape).scatter_add_(ctx.dim, index, given.masked_fill(gone, 0))


@with_gradient(_picked_gradient)
def _picked(ctx: Any, x: torch.Tensor, dim: int, index: torch.Tensor, gone: torch.Tensor) -> torch.Tensor:
    """The elements an index selects, and zeros where `gone`. Unlike torch's gather it does not keep the scores for
    backward."""
    ctx.save_for_backward(index, gone)
    ctx.dim, ctx.shape = dim, x.shape
    return x.gather(dim, index).masked_fill_(gone, 0)


def gather_part(x: torch.Tensor, dim: int, index: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Gather along a split axis of `size`: this part has the positions from `start`, and returns zeros for the others.
    The parts' results add up."""
    return _picked(x, dim, *in_part(index, x.shape[dim], start, size))


def nll_part(
    scores: torch.Tensor,
    labels: torch.Tensor,
    start: int,
    size: int,
    weight: torch.Tensor | None = None,
    reduction: int = 2,
    ignore_index: int = -100,
) -> torch.Tensor:
    """The negative scores of the labels: scores [n, classes of this part, ...], labels [n, ...]. This part's classes
    begin at `start` of `size`; other labels give zeros. The parts' results add up. With `reduction` 2 their sum is
    returned."""
    check_range(labels.masked_fill(labels == ignore_index, 0), size)
    local = labels - start
    gone = (local < 0) | (local >= scores.shape[1]) | (labels == ignore_index)
    local = local.masked_fill_(gone, 0)
    losses = -_picked(scores, 1, local.unsqueeze(1), gone.unsqueeze(1)).squeeze(1)
    losses = losses if weight is None else losses * weight[local]
    return losses.sum() if reduction == 2 else losses


def _scaled_gradients(ctx: Any, gradient: torch.Tensor) -> Gradients:
    normal, weight, inverse = ctx.saved_tensors
    alike = [
        n if axis in ctx.over else size for axis, (n, size) in enumerate(zip(weight.shape, normal.shape, strict=True))
    ]
    scaled, plain = (gradient * normal).sum_to_size(alike), gradient.sum_to_size(alike)
    mine = [scaled, plain] if ctx.centred else [scaled]
    sums = torch.stack([(each * weight).sum_to_size(inverse.shape) for each in mine])
    ctx.group.all_reduce(sums)
    product, *mean = sums / ctx.count
    given = gradient * weight - normal * product
    given = (given - mean[0] if mean else given) * inverse
    return given, scaled.sum_to_size(weight.shape), plain.sum_to_size(weight.shape)


@with_gradient(_scaled_gradients)
def _scaled(
    ctx: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor | None,
    inverse: torch.Tensor,
    over: list[int],
    count: int,
    group: Group,
) -> torch.Tensor:
    """(x - mean) / deviation * weight + bias, with mean and deviation over all parts.

    `over` are the axes of the statistics, with `count` elements in all parts; `weight` and `bias` have the rank of `x`,
    with size 1 on broadcast axes. With mean None x is not centred, as in RMS norm.
    """
    normal = (x if mean is None else x - mean) * inverse
    ctx.save_for_backward(normal, weight, inverse)
    ctx.over, ctx.count, ctx.group, ctx.centred = over, count, group, mean is not None
    return normal * weight + bias


def _normalised(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    over: list[int],
    shape: list[int],
    eps: float,
    count: int,
    group: Group,
    *,
    centred: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The normalised tensor, with the mean and the variance over all parts; if not `centred`, with None and the mean
    square. `shape` is that of weight and bias."""
    wide = x.to(_wide(x))
    with torch.no_grad():
        mean = wide.sum(over, keepdim=True) / count if centred else None
        if mean is not None:
            group.all_reduce(mean)
        variance = (wide if mean is None else wide - mean).square().sum(over, keepdim=True) / count
        group.all_reduce(variance)
    scale = wide.new_ones(shape) if weight is None else weight.view(shape)
    shift = wide.new_zeros(shape) if bias is None else bias.view(shape)
    inverse = torch.rsqrt(variance + eps)
    result = _scaled(wide, scale, shift, mean, inverse, over, count, group)
    return result.to(x.dtype), mean, variance


def layer_norm_parts(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    count: int,
    group: Group,
) -> torch.Tensor:
    """Layer normalisation of x [..., *normalized_shape] that is split along normalised axes, with statistics over the
    `count` elements of a row in all parts. `weight` and `bias` are those of the part."""
    over, shape = _last(x, len(normalized_shape))
    return _normalised(x, weight, bias, over, shape, eps, count, group)[0]


def rms_norm_parts(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    count: int,
    group: Group,
    eps: float | None = None,
) -> torch.Tensor:
    """RMS normalisation of x [..., *normalized_shape] that is split along normalised axes, with the mean square over
    the `count` elements of a row in all parts. Without `eps`, it is that of the type in which torch computes."""
    over, shape = _last(x, len(normalized_shape))
    eps = torch.finfo(_wide(x)).eps if eps is None else eps
    return _normalised(x, weight, None, over, shape, eps, count, group, centred=False)[0]


def _wide(x: torch.Tensor) -> torch.dtype:
    """The type in which statistics are taken: float32 for half precision."""
    return torch.promote_types(x.dtype, torch.float32)


def _last(x: torch.Tensor, count: int) -> tuple[list[int], list[int]]:
    """The last `count` axes, and the shape of weights that have these axes only."""
    first = x.dim() - count
    return [*range(first, x.dim())], [1] * first + [*x.shape[first:]]


def batch_norm_parts(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
    group: Group,
) -> torch.Tensor:
    """Batch normalisation, in training, of x that is split over the group along the batch or in space, with statistics
    over the `count` elements of a channel in all parts."""
    over, shape = [0, *range(2, x.dim())], [1, x.shape[1]] + [1] * (x.dim() - 2)
    result, mean, variance = _normalised(x, weight, bias, over, shape, eps, count, group)
    if running_mean is not None and running_var is not None and mean is not None:
        running_mean.lerp_(mean.flatten().to(running_mean.dtype), momentum)
        running_var.lerp_((variance.flatten() * (count / max(1, count - 1))).to(running_var.dtype), momentum)
    return result


def group_norm_parts(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    count: int,
    group: Group,
) -> torch.Tensor:
    """Group normalisation of x [batch, channels, ...] that is split in space, with statistics of each example's channel
    groups over the `count` positions of all parts."""
    inside = x.shape[1] // groups
    by_group = x.reshape(x.shape[0], groups, inside, *x.shape[2:])
    shape = [1, groups, inside] + [1] * (x.dim() - 2)
    over = [*range(2, by_group.dim())]
    return _normalised(by_group, weight, bias, over, shape, eps, count * inside, group)[0].reshape(x.shape)


def instance_norm_parts(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, count: int, group: Group
) -> torch.Tensor:
    """Instance normalisation of x [batch, channels, ...] that is split in space, with statistics of each example's
    channels over the `count` positions of all parts."""
    return group_norm_parts(x, x.shape[1], weight, bias, eps, count, group)
