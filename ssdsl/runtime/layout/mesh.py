"""Meshes of devices: the coordinates of a rank in a mesh, and the ranks along its axes.

>>> mesh = RankMesh("gpus", {"dp": 2, "tp": 3}, first=10)
>>> mesh.coordinates(14), mesh.rank({"dp": 1, "tp": 1})
({'dp': 1, 'tp': 1}, 14)
>>> mesh.lines(("tp",)), mesh.lines(("dp",))
([[10, 11, 12], [13, 14, 15]], [[10, 13], [11, 14], [12, 15]])
"""

import itertools
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RankMesh:
    """Ranks `first`, `first + 1`, ... in row-major order of the axes."""

    name: str
    axes: dict[str, int]
    first: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int] | None:
        """The coordinates of a rank on all axes; None for a rank outside the mesh."""
        place = rank - self.first
        if not 0 <= place < self.size:
            return None
        found = {}
        for axis, n in reversed(self.axes.items()):
            place, found[axis] = divmod(place, n)
        return dict(reversed(found.items()))

    def rank(self, at: dict[str, int]) -> int:
        """The rank at these coordinates, which name every axis."""
        place = 0
        for axis, n in self.axes.items():
            place = place * n + at[axis]
        return self.first + place

    def lines(self, axes: tuple[str, ...]) -> list[list[int]]:
        """All sets of ranks that differ only on these axes."""
        others = [a for a in self.axes if a not in axes]
        found = []
        for fixed in itertools.product(*(range(self.axes[a]) for a in others)):
            held = dict(zip(others, fixed, strict=True))
            moving = itertools.product(*(range(self.axes[a]) for a in axes))
            found.append(sorted(self.rank(held | dict(zip(axes, at, strict=True))) for at in moving))
        return found
