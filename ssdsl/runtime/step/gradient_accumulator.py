"""Gradients that came back to parts of values: sums of what readers gave, each of all of a part or of runs of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..layout.cut import paired
from ..layout.regions import Runs

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class AxisRuns:
    """Runs of axis `dim` of a part, which has `size` positions."""

    dim: int
    runs: Runs
    size: int

    @property
    def is_whole(self) -> bool:
        return self.runs == ((0, self.size),)


class GradientAccumulator:
    """The sums so far. What readers gave may be looked into by others; only sums that were made here are added to in
    place."""

    def __init__(self) -> None:
        self.sums: dict[Key, torch.Tensor] = {}
        self.own: set[Key] = set()

    def add(self, key: Key, gradient: torch.Tensor, regions: Iterable[AxisRuns] = ()) -> None:
        """Adds the gradient of a part, or of what `regions` say of it."""
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
        """The gradient of a part, to which nothing more is added; None where nobody gave one."""
        self.own.discard(key)
        return self.sums.pop(key, None)

    def clear(self) -> None:
        """Forgets all of them."""
        self.own.clear()
        self.sums.clear()


def _zeros(gradient: torch.Tensor, partial: list[AxisRuns]) -> torch.Tensor:
    shape = list(gradient.shape)
    for region in partial:
        shape[region.dim] = region.size
    return gradient.new_zeros(shape)


def _add(total: torch.Tensor, gradient: torch.Tensor, partial: list[AxisRuns]) -> None:
    """Adds to the positions that the runs of some axes have in common.

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
