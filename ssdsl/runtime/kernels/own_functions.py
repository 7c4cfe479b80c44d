"""Calls of users' `torch.autograd.Function`s."""

from collections.abc import Callable
from typing import Any

import torch


def autocasting(dtype: torch.dtype, apply: Callable[..., Any], *args: Any) -> Any:
    """The results of a function whose operators autocast casts to a type, on the device of its first tensor."""
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    with torch.autocast(device, dtype=dtype):
        return apply(*args)


def tensors_of(results: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among the results of a function, without numbers and None."""
    return [item for item in results if isinstance(item, torch.Tensor)]
