"""Operators of which one part runs: those whose split needs more than a slice of their inputs."""

from typing import Any

import torch
import torch.nn.functional as F

from .world import Group


def embedding_part(ids: torch.Tensor, table: torch.Tensor, start: int) -> torch.Tensor:
    """Rows of a vocabulary that is split: this part has those from `start`, and zeros for the rest; parts add up.

    ids [...], table [rows of this part, hidden] -> [..., hidden].
    """
    local = ids - start
    outside = (local < 0) | (local >= table.shape[0])
    return F.embedding(local.masked_fill(outside, 0), table).masked_fill(outside.unsqueeze(-1), 0.0)


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, is_first: bool) -> torch.Tensor:
        return x.view_as(x) if is_first else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def first(x: torch.Tensor, *groups: Group) -> torch.Tensor:
    """An addend of a sum over the groups: only the first rank adds it, but every rank gets its whole gradient."""
    return _First.apply(x, all(g.index == 0 for g in groups))  # type: ignore[no-any-return, no-untyped-call]


def first_time(x: torch.Tensor, *at: int) -> torch.Tensor:
    """An addend of a sum over parts that run one after another: only the first part adds it."""
    return torch.zeros_like(x) if any(at) else x


class _Picked(torch.autograd.Function):
    """What an index picks, and zeros where `gone`. Other than torch's gather it keeps no scores."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, index: torch.Tensor, gone: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index, gone)
        ctx.dim, ctx.shape = dim, x.shape
        return x.gather(dim, index).masked_fill_(gone, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        index, gone = ctx.saved_tensors
        given = gradients[0].masked_fill(gone, 0)
        return given.new_zeros(ctx.shape).scatter_add_(ctx.dim, index, given), None, None, None


def gather_part(x: torch.Tensor, dim: int, index: torch.Tensor, start: int) -> torch.Tensor:
    """What an index picks along an axis that is split: this part has positions from `start`, and zeros for the rest;
    parts add up."""
    local = index - start
    outside = (local < 0) | (local >= x.shape[dim])
    return _Picked.apply(x, dim, local.masked_fill_(outside, 0), outside)  # type: ignore[no-any-return, no-untyped-call]


def nll_part(
    scores: torch.Tensor,
    labels: torch.Tensor,
    start: int,
    weight: torch.Tensor | None = None,
    reduction: int = 2,
    ignore_index: int = -100,
) -> torch.Tensor:
    """The negative scores [n, classes of this part, ...] of the labels [n, ...] of this part's classes, which begin at
    `start`; zeros for other labels. Parts add up. For `reduction` 2, their sum."""
    local = labels - start
    gone = (local < 0) | (local >= scores.shape[1]) | (labels == ignore_index)
    local = local.masked_fill_(gone, 0)
    losses = -_Picked.apply(scores, 1, local.unsqueeze(1), gone.unsqueeze(1)).squeeze(1)  # type: ignore[no-untyped-call]
    losses = losses if weight is None else losses * weight[local]
    return losses.sum() if reduction == 2 else losses  # type: ignore[no-any-return]


def _sum(x: torch.Tensor, group: Group) -> torch.Tensor:
    group.all_reduce(x)
    return x


class _BatchNormParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        inverse: torch.Tensor,
        group: Group,
    ) -> torch.Tensor:
        normal = (x - mean) * inverse
        ctx.save_for_backward(normal, weight, inverse)
        ctx.group = group
        return normal * weight + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normal, weight, inverse = ctx.saved_tensors
        gradient = gradients[0]
        over = [0, *range(2, gradient.dim())]
        sums = torch.stack([gradient.sum(over), (gradient * normal).sum(over)])
        mine = sums.clone()
        ctx.group.all_reduce(sums)
        n = gradient.numel() // gradient.shape[1] * ctx.group.size
        shape = weight.shape
        mean, product = (s.view(shape) / n for s in sums)
        given = (gradient - mean - normal * product) * weight * inverse
        return given, mine[1].view(shape), mine[0].view(shape), None, None, None


def batch_norm_parts(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    group: Group,
) -> torch.Tensor:
    """Batch normalisation of a batch that is split over the group: statistics over all parts, in training."""
    over = [0, *range(2, x.dim())]
    n = x.numel() // x.shape[1] * group.size
    with torch.no_grad():
        mean = _sum(x.sum(over), group) / n
        shape = [1, -1] + [1] * (x.dim() - 2)
        variance = _sum((x - mean.view(shape)).square().sum(over), group) / n
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (n / max(1, n - 1)), momentum)
    scale = x.new_ones(x.shape[1]) if weight is None else weight
    shift = x.new_zeros(x.shape[1]) if bias is None else bias
    inverse = torch.rsqrt(variance + eps)
    result = _BatchNormParts.apply(  # type: ignore[no-untyped-call]
        x, scale.view(shape), shift.view(shape), mean.view(shape), inverse.view(shape), group
    )
    return result  # type: ignore[no-any-return]
