"""Instance norm with running statistics, in operators that a graph shows: torch's kernel changes them unseen."""

from typing import Any

import torch
from torch import Tensor


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
    """`torch.instance_norm` of x [batch, channel, ...]; NotImplemented where there are no running statistics.

    Without statistics of its input it is a batch norm in eval mode.
    """
    if running_mean is None or running_var is None:
        return NotImplemented
    if not use_input_stats:
        return torch.batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    _track(x.detach().to(running_mean.dtype).flatten(2), running_mean, running_var, momentum)
    return torch.instance_norm(x, weight, bias, None, None, True, momentum, eps, cudnn_enabled)


def _track(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Updates the running statistics with the mean of each example's statistics in x [batch, channel, space].

    They are written as sums over the batch and over space, so that parts of both give addends.
    """
    batch, _, space = x.shape
    mean = x.sum(2) / space
    variance = (x - mean[:, :, None]).square().sum(2) / max(1, space - 1)
    for running, found in ((running_mean, mean), (running_var, variance)):
        running.copy_(running * (1 - momentum) + momentum * (found.sum(0) / batch))
