"""The norm of all gradients, of which each rank has some: each logical element counts once."""

from collections.abc import Iterable

import torch

EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


def square_sum(gradients: Iterable[torch.Tensor]) -> float:
    """The sum of the squares of all elements."""
    norms = torch._foreach_norm([g for g in gradients if g.numel()])
    return float(torch.stack([n.double() for n in norms]).square().sum()) if norms else 0.0


def factor(norm: float, most: float) -> float:
    """What gradients are multiplied by so that their norm is at most `most`."""
    return min(1.0, most / (norm + EPSILON))
