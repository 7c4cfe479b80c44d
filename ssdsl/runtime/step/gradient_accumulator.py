"""Accumulates the gradients of parts of values: sums over their readers, each of which may read all of a part or runs
of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..layout.cut import paired
from ..layout.regions import Runs

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class AxisRuns:
    """Runs of axis `dim` of a part; the axis has `size` positions."""

    dim: int
    runs: Runs
    size: int

    @property
    def is_whole(self) -> bool:
        return self.runs == ((0, self.size),)

    def in_whole(self, x: torch.Tensor) -> torch.Tensor:
        """These runs of the axis in all of it, with zeros around them."""
        if self.is_whole:
            return x
        whole = _zeros(x, [self])
        _add(whole, x, [self])
        return whole


class GradientAccumulator:
    """The sums so far. Gradients that readers passed may be views of other tensors, so only sums that were allocated
    here are added to in place."""

    def __init__(self) -> None:
        self.sums: dict[Key, torch.Tensor] = {}
        self.own: set[Key] = set()

    def add(self, key: Key, gradient: torch.Tensor, regions: Iterable[AxisRuns] = ()) -> None:
        """Adds the gradient of a part, or of the `regions` of it."""
        partial = [region for region in regions if not region.is_whole]
        if key not in self.sums and not partial:
            self.sums[key] = gradient
        elif not partial and key not in self.own:
            self._keep(key, self.sums[key] + gradient)
        else:
            if key not in self.own:
                self._keep(key, self.sums[key].clone() if key in self.sums else _zeros(gradient, partial))
            _add(self.sums[key], gradient, partial)

    def _keep(self, key: Key, gradient: torch.Tensor) -> None:
        self.sums[key] = gradient
        self.own.add(key)

    def pop(self, key: Key) -> torch.Tensor | None:
        """The final gradient of a part; None if it has none."""
        self.own.discard(key)
        return self.sums.pop(key, None)

    def clear(self) -> None:
        """Drops all gradients."""
        self.own.clear()
        self.sums.clear()


def _zeros(gradient: torch.Tensor, partial: list[AxisRuns]) -> torch.Tensor:
    shape = list(gradient.shape)
    for region in partial:
        shape[region.dim] = region.size
    return gradient.new_zeros(shape)


def _add(total: torch.Tensor, gradient: torch.Tensor, partial: list[AxisRuns]) -> None:
    """Adds `partial` to the positions of `total` that all runs of these axes select.

    >>> total = torch.zeros(5)
    >>> _add(total, torch.ones(3), [AxisRuns(0, ((0, 1), (3, 5)), 5)])
    >>> total.tolist()
    [1.0, 0.0, 0.0, 1.0, 1.0]
    """
    if not partial:
        total += gradient
        return
    first, *rest = partial
    for there, here in paired(total, gradient, first.dim, first.runs):
        _add(there, here, rest)
