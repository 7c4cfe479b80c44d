"""`torch.bincount` with as many counts as its `minlength` says.

Its result is longer where a number is `minlength` or greater, so its shape depends on data. Models that give a
`minlength` know a bound (a router has so many experts). A number beyond it stops the run, as an index out of range.
"""

from collections.abc import Callable

import torch


def bounded(counting: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.bincount`, or the method, as a sum of ones, or of weights, over the numbers that are equal."""

    def counts(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        if not minlength:
            return counting(input, weights, minlength)
        if weights is None:
            each = torch.ones_like(input, dtype=torch.int64)
        else:
            each = weights if weights.dtype is torch.float32 else weights.double()  # as torch does
        return each.new_zeros(minlength).scatter_add(0, input.long(), each)

    return counts
