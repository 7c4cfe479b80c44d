"""The part of a weight, or of an input, that a rank holds."""

from dataclasses import dataclass
from typing import Any

import torch

from .moves import cut_part
from .regions import Regions

Taken = tuple[int, int, int | Regions, int]  # dim, outer, the number of equal parts or the regions, index


@dataclass(frozen=True)
class Piece:
    """How the local part of a tensor follows from the whole, of `shape`: takes of (dim, outer, count, index); where
    parts are unequal or overlap, with their regions in place of the count.

    >>> Piece("w", (4, 6), ((0, 1, 2, 1), (1, 3, 2, 0))).of(torch.arange(24).view(4, 6)).tolist()
    [[12, 14, 16], [18, 20, 22]]
    >>> Piece("x", (6,), ((0, 1, (((0, 4),), ((2, 6),)), 1),)).of(torch.arange(6)).tolist()
    [2, 3, 4, 5]
    """

    name: str
    shape: tuple[int, ...]
    takes: tuple[Taken, ...]

    def places(self) -> list[torch.Tensor]:
        """The positions of the part on each axis of the whole.

        >>> [p.tolist() for p in Piece("w", (4, 6), ((0, 1, 2, 1), (1, 3, 2, 0))).places()]
        [[2, 3], [0, 2, 4]]
        """
        found = [torch.arange(size) for size in self.shape]
        for dim, outer, parts, index in self.takes:
            found[dim] = cut_part(found[dim], 0, outer, parts, index)
        return [place.reshape(-1) for place in found]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part, contiguous."""
        for taken in self.takes:
            whole = cut_part(whole, *taken)
        return whole.contiguous()

    def saved(self, local: torch.Tensor) -> dict[str, Any]:
        """The part with the way it was cut out, from which the whole can be put together again."""
        return {"shape": self.shape, "takes": list(self.takes), "tensor": local.detach().cpu().clone()}
