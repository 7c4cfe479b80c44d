"""Batch normalisation in groups: each micro-batch has its own statistics, on a single device as in any plan.

Training with micro-batches usually normalises each of them by itself (GPipe, 2019; "ghost" batch norm, Hoffer et al.
2017). A model with the statistics of the whole batch computes something else. A plan never changes what is computed, so
the model has to ask for groups. Running statistics are updated as if the groups had come one after another.

The running statistics of an instance norm, which torch's kernel changes without an operator of their own, are written
as operators, too.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssdsl.identity import ByIdentity


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
    """The module, in which every batch norm now normalises each of `groups` equal parts of the batch by itself.

    The weights and buffers stay the same objects under the same names. Raises ValueError for less than one group.
    """
    if groups < 1:
        raise ValueError(f"{groups} groups: a batch has at least one")
    norms = (norm for norm in module.modules() if isinstance(norm, _BatchNorm))
    grouped = ByIdentity[nn.Module, nn.Module]((norm, GroupedBatchNorm(norm, groups)) for norm in norms)
    for owner in [*module.modules()]:
        for name, child in owner._modules.items():  # `named_children` has one name of each
            if child is not None and child in grouped:
                setattr(owner, name, grouped[child])
    return grouped.get(module, module)


def grouped_batch_norm(norm: Any, x: Tensor, groups: int) -> Tensor:
    """Batch norm of x [batch, channel, ...], in groups of the batch; the result has the shape of x.

    Inside, the groups become channels: [batch / groups, groups · channel, ...].
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
    """Updates the running statistics as if the groups of parts [in group, group, channel, space] came one by one."""
    n = parts.shape[0] * parts.shape[3]
    mean = parts.sum((0, 3)) / n
    variance = (parts - mean[:, :, None]).square().sum((0, 3)) / max(1, n - 1)
    kept, weights = _shares(norm, groups, parts)
    norm.num_batches_tracked.add_(groups)
    for running, found in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.copy_(running * kept + (weights * found).sum(0))


def _shares(norm: Any, groups: int, like: Tensor) -> tuple[Any, Any]:
    """The weight of the old running statistics, a number, and of each group's, [group, 1] or a number for all.

    With momentum m, group i of g has weight m (1 - m)^(g - 1 - i): later groups have decayed it. With m = 0.1 and two
    groups, the old statistics keep 0.81, and the groups have 0.09 and 0.1. Without a momentum, the running statistics
    are the mean of all that were seen.
    """
    if norm.momentum is None:
        before = norm.num_batches_tracked.to(like.dtype)
        return before / (before + groups), 1 / (before + groups)
    after = torch.arange(groups - 1, -1, -1, dtype=like.dtype, device=like.device)
    return (1 - norm.momentum) ** groups, (norm.momentum * (1 - norm.momentum) ** after)[:, None]


# -- instance norm with running statistics -----------------------------------------------------------------------------


def instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """`torch.instance_norm` of x [batch, channel, ...]; NotImplemented if there are no running statistics.

    Without statistics of its input it is a batch norm in eval mode.
    """
    if running_mean is None or running_var is None:
        return NotImplemented
    if not use_input_stats:
        return torch.batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    _track_examples(x.detach().to(running_mean.dtype).flatten(2), running_mean, running_var, momentum)
    return torch.instance_norm(x, weight, bias, None, None, True, momentum, eps, cudnn_enabled)


def _track_examples(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Updates the running statistics with the mean of each example's statistics in x [batch, channel, space].

    They are written as sums over the batch and over space, so that parts of both give addends.
    """
    batch, _, space = x.shape
    mean = x.sum(2) / space
    variance = (x - mean[:, :, None]).square().sum(2) / max(1, space - 1)
    for running, found in ((running_mean, mean), (running_var, variance)):
        running.copy_(running * (1 - momentum) + momentum * (found.sum(0) / batch))
