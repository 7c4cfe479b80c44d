"""Batch normalisation in groups: each micro-batch by its own statistics, on the single device as in any plan.

Training by micro-batches usually normalises each of them by itself (GPipe, 2019; "ghost" batch norm, Hoffer et al.
2017). That is another model than one with the statistics of the whole batch, so the model has to say it: the plan never
changes what is computed. Running statistics are updated as if the groups had come one after another.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class GroupedBatchNorm(nn.Module):
    """Batch norm over each of `groups` equal parts of the batch, with the weights and buffers of `norm`.

    Raises ValueError in forward for a batch that has no such parts.
    """

    def __init__(self, norm: _BatchNorm, groups: int) -> None:
        super().__init__()
        self.groups, self.eps, self.momentum, self.num_features = groups, norm.eps, norm.momentum, norm.num_features
        self.track_running_stats = norm.track_running_stats
        self.register_parameter("weight", norm.weight)
        self.register_parameter("bias", norm.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        return grouped_batch_norm(self, x, self.groups)

    def extra_repr(self) -> str:
        return f"{self.num_features}, groups={self.groups}, eps={self.eps}, momentum={self.momentum}"


def micro_batch_statistics(module: nn.Module, groups: int) -> nn.Module:
    """The module with every batch norm in it normalising each of `groups` equal parts of the batch by itself.

    The weights and buffers stay the same objects under the same names. Raises ValueError for less than one group.
    """
    if groups < 1:
        raise ValueError(f"{groups} groups: a batch has at least one")
    if isinstance(module, _BatchNorm):
        return GroupedBatchNorm(module, groups)
    for name, child in module.named_children():
        setattr(module, name, micro_batch_statistics(child, groups))
    return module


def grouped_batch_norm(norm: Any, x: Tensor, groups: int) -> Tensor:
    """What a batch norm computes of x [batch, channel, ...], in groups of the batch.

    The groups become channels: [batch / groups, groups · channel, ...].
    """
    if not norm.training and norm.running_mean is not None:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    batch, channels, *space = x.shape
    if batch % groups:
        raise ValueError(f"a batch of {batch} has no {groups} equal micro-batches")
    inside = batch // groups
    parts = x.reshape(groups, inside, channels, *space).transpose(0, 1)
    flat = parts.reshape(inside, groups * channels, *space)
    weight, bias = (None if w is None else w.expand(groups, channels).reshape(-1) for w in (norm.weight, norm.bias))
    normal = F.batch_norm(flat, None, None, weight, bias, True, 0.0, norm.eps)
    if norm.training and norm.track_running_stats:
        with torch.no_grad():
            _track(norm, parts.reshape(inside, groups, channels, -1), groups)
    return normal.reshape(inside, groups, channels, *space).transpose(0, 1).reshape(x.shape)


def _track(norm: Any, parts: Tensor, groups: int) -> None:
    """Updates the running statistics with those of parts [in group, group, channel, space], one after another."""
    n = parts.shape[0] * parts.shape[3]
    mean = parts.sum((0, 3)) / n
    variance = (parts - mean[:, :, None]).square().sum((0, 3)) / max(1, n - 1)
    kept, weights = _shares(norm, groups, parts)
    norm.num_batches_tracked.add_(groups)
    for running, found in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.copy_(running * kept + (weights * found).sum(0))


def _shares(norm: Any, groups: int, like: Tensor) -> tuple[Any, Any]:
    """What the old running statistics and those of each group count for, [group, 1] or a number.

    Without a momentum, the running statistics are the mean of all that were seen.
    """
    if norm.momentum is None:
        before = norm.num_batches_tracked.to(like.dtype)
        return before / (before + groups), 1 / (before + groups)
    after = torch.arange(groups - 1, -1, -1, dtype=like.dtype, device=like.device)
    return (1 - norm.momentum) ** groups, (norm.momentum * (1 - norm.momentum) ** after)[:, None]
