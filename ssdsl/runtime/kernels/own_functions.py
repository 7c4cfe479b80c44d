"""Calls of users' `torch.autograd.Function`s."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .own_gradient import with_gradient


def autocasting(dtype: torch.dtype, apply: Callable[..., Any], *args: Any) -> Any:
    """The results of a function whose operators autocast casts to a type, on the device of its first tensor."""
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    with torch.autocast(device, dtype=dtype):
        return apply(*args)


def counted(labels: torch.Tensor, value: int, apply: Callable[..., Any], *args: Any) -> torch.Tensor:
    """The sum of what a function averages over the labels that have another value; zero, without gradients, if no label
    has: the average, and the gradients that a function computes of it, are no numbers then."""
    count = (labels != value).sum()
    is_some = count > 0
    given = tree_map_only(torch.Tensor, lambda x: _if(x, is_some) if x.requires_grad else x, args)
    return torch.where(is_some, apply(*given) * count, 0.0)


def _keep(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (is_some,) = ctx.saved_tensors
    return torch.where(is_some, gradient, 0.0)


@with_gradient(_keep)
def _if(ctx: Any, x: torch.Tensor, is_some: torch.Tensor) -> torch.Tensor:
    """A tensor whose gradient is zero unless `is_some`."""
    ctx.save_for_backward(is_some)
    return x.view_as(x)


def tensors_of(results: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among the results of a function, without numbers and None."""
    return [item for item in results if isinstance(item, torch.Tensor)]
