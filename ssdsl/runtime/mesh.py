"""Devices as coordinates: which rank is where in which mesh, and the process groups along the axes."""

import itertools
import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Mesh:
    """Ranks `first`, `first + 1`, ... in row-major order of the axes."""

    name: str
    axes: dict[str, int]
    first: int

    @property
    def size(self) -> int:
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int] | None:
        """The coordinate of a rank on every axis, None for a rank outside."""
        place = rank - self.first
        if not 0 <= place < self.size:
            return None
        found = {}
        for axis, n in reversed(self.axes.items()):
            place, found[axis] = divmod(place, n)
        return dict(reversed(found.items()))

    def rank(self, at: dict[str, int]) -> int:
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


@dataclass(frozen=True)
class Group:
    """The ranks that differ from this one only on some axes. `index` is this rank's place among them."""

    name: str
    ranks: tuple[int, ...]
    index: int
    process_group: Any = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass
class World:
    """This process: its rank and the groups it is in. `join` is called once, by all ranks alike."""

    rank: int = 0
    meshes: dict[str, Mesh] = field(default_factory=dict)
    groups: dict[tuple[str, tuple[str, ...]], Group] = field(default_factory=dict)
    timeout: timedelta | None = None  # how long a rank waits in a group; groups do not inherit that of the world
    transfers: tuple[Any, ...] = ()  # the groups of all ranks in which values, and gradients, travel

    def join(self, rank: int, meshes: list[Mesh], wanted: list[tuple[str, tuple[str, ...]]]) -> None:
        """Creates the wanted groups (mesh and axes); every rank creates all of them, in the same order."""
        self.rank = rank
        self.meshes = {m.name: m for m in meshes}
        for mesh, axes in wanted:
            for ranks in self.meshes[mesh].lines(axes):
                made = dist.new_group(ranks, timeout=self.timeout)
                if rank in ranks:
                    self.groups[mesh, axes] = Group("_".join(axes), tuple(ranks), ranks.index(rank), made)

    def coordinate(self, mesh: str, axis: str) -> int:
        at = self.meshes[mesh].coordinates(self.rank)
        assert at is not None
        return at[axis]


WORLD = World()


def group(mesh: str, *axes: str) -> Group:
    """The group of this rank along one axis of a mesh, or several."""
    return WORLD.groups[mesh, axes]
