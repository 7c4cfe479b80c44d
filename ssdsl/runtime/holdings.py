"""What this rank holds of the model's tensors, and whether it is the one to save and count it.

A weight may live in several places: its *homes*. All ranks of a home have it, each a part; so one home is enough, the
first, and in it of the ranks with equal elements the one with the lowest number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .held import Held
from .piece import Piece
from .regions import Regions
from .table import Table, is_at, takes_of
from .weights import Weights
from .world import World


@dataclass(frozen=True)
class _Home:
    """Ranks of one mesh that have a tensor cut alike; `flat` is the number of the flat parameter that it is in."""

    mesh: str
    takes: tuple[tuple[str, int, int, int | Regions], ...]
    flat: int | None
    shard_axes: tuple[str, ...]

    @property
    def axes(self) -> set[str]:
        """The axes along which ranks have different elements."""
        return {axis for axis, *_ in self.takes} | set(self.shard_axes)


class Homes:
    """Who holds what, by the table that all ranks have."""

    def __init__(self, table: Table, world: World) -> None:
        self.world = world
        self._roles: dict[str, dict[_Home, list[Table]]] = {}
        for role in table["roles"]:
            for name, home in _homes(role):
                self._roles.setdefault(name, {}).setdefault(home, []).append(role)

    def owns(self, name: str) -> bool:
        """Whether of all ranks that hold the same elements of a tensor as this one, this one saves and counts them."""
        home, roles = next(iter(self._roles[name].items()))
        is_here = any(is_at(role, self.world) is not None for role in roles)
        return is_here and self.world.rank == self._first(home, roles)

    def _first(self, home: _Home, roles: list[Table]) -> int:
        """The lowest rank of a home that holds the same elements as this one."""
        mesh = self.world.meshes[home.mesh]
        at = mesh.coordinates(self.world.rank)
        assert at is not None
        same = {axis: at[axis] for axis in home.axes}
        alike = (role["fixed"] for role in roles if all(same.get(a, c) == c for a, c in role["fixed"].items()))
        return min(mesh.rank(dict.fromkeys(mesh.axes, 0) | same | fixed) for fixed in alike)


def _homes(role: Table) -> Iterator[tuple[str, _Home]]:
    for flat in role["flats"]:
        for weight in flat["weights"]:
            yield weight["name"], _Home(role["mesh"], takes_of(weight), flat["number"], tuple(flat["shard_axes"]))
    for other in role["others"]:
        yield other["name"], _Home(role["mesh"], takes_of(other), None, ())


def held(weights: Weights, pieces: dict[str, Piece], homes: Homes) -> list[Held]:
    """What this rank holds, trained weights first, then the others and the buffers."""
    found = [
        Held(name, pieces[name], span, tensor, homes.owns(name))
        for flat in weights.flats
        for name, (span, tensor) in flat.stepped().items()
    ]
    return found + [Held(n, pieces[n], None, tensor, homes.owns(n)) for n, tensor in weights.buffers.items()]
