"""The parts of tensors on this rank: of inputs, of the model's weights and buffers, and of outputs.

A weight may live on several meshes, its *homes*. Together the ranks of a home have all of it, so one home, the first,
is enough to save it. Of ranks with equal elements in that home, the lowest *owns* them.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..layout.cut import Piece, Take, positions
from ..program.initial_state import InitialState
from ..program.table import AxisTake, RequestedOutput, RoleEntry, Table, TensorEntry
from ..ranks.world import World
from .weights import Weights

At = tuple[int, ...]
Placed = tuple[list[torch.Tensor], torch.Tensor]  # positions on every axis of the whole tensor, and the part


def pieces_of(tensors: Iterable[TensorEntry], role: RoleEntry, world: World) -> list[Piece]:
    """This rank's parts of some weights or inputs of its role."""
    at = world.at(role.mesh, role.fixed)
    assert at is not None
    return [Piece(t.name, t.shape, _taken(t.takes, at)) for t in tensors]


def _taken(takes: Iterable[AxisTake], at: Mapping[str, int]) -> tuple[Take, ...]:
    return tuple((take.dim, take.outer, take.parts, take.part(at)) for take in takes)


# -- weights and buffers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalTensor:
    """The part of a weight or buffer on this rank: a piece, or under ZeRO some elements of the flattened piece.

    `name` is the model's own, for tied weights the first. `span` are the elements [start, stop) of the flattened piece,
    None for all. `tensor` has the piece's shape, or is [stop - start]; writing to it changes the trained model. `owns`:
    of all ranks with these elements, this one saves and counts them.
    """

    name: str
    piece: Piece
    span: tuple[int, int] | None
    tensor: torch.Tensor
    owns: bool

    @classmethod
    def whole(cls, name: str, tensor: torch.Tensor, owns: bool = True) -> "LocalTensor":
        """A tensor that this rank has in full."""
        return cls(name, Piece(name, tuple(tensor.shape)), None, tensor, owns)


def local_tensors(weights: Weights, pieces: dict[str, Piece], owners: "ReplicaOwners") -> list[LocalTensor]:
    """All parts of weights and buffers on this rank: trained weights, other weights, then buffers."""
    trained = [(name, *found) for flat in weights.flats for name, found in flat.stepped().items()]
    others = [(name, None, tensor) for name, tensor in weights.buffers.items()]
    return [LocalTensor(name, pieces[name], span, x, owners.owns(name)) for name, span, x in (*trained, *others)]


def untrained(table: Table, state: InitialState, names: Iterable[str]) -> list[LocalTensor]:
    """Copies of weights and buffers that no role uses, such as buffers that became constants. Rank 0 saves them, so
    that a checkpoint holds the model's whole state.

    `names` are those of the whole state; of a tied weight only the first.
    """
    used = {w.name for role in table.roles for w in role.weights}
    return [LocalTensor.whole(name, state[name].detach().clone()) for name in names if name not in used]


@dataclass(frozen=True)
class _Home:
    """Ranks of one mesh that cut a tensor alike; `flat` is the number of its flat parameter."""

    mesh: str
    takes: tuple[AxisTake, ...]
    flat: int | None = None
    sharded: tuple[tuple[str, ...], ...] = ()

    @property
    def axes(self) -> set[str]:
        """The axes along which ranks have different elements."""
        return {axis for take in self.takes for axis in take.axes} | {axis for axes in self.sharded for axis in axes}


class ReplicaOwners:
    """Decides, from the table that all ranks share, which of the ranks with equal elements saves and counts them."""

    def __init__(self, table: Table, world: World) -> None:
        self.world = world
        self._roles: dict[str, dict[_Home, list[RoleEntry]]] = {}
        for role in table.roles:
            for name, home in _homes(role):
                self._roles.setdefault(name, {}).setdefault(home, []).append(role)

    def owns(self, name: str) -> bool:
        """Whether this rank saves and counts its elements of a tensor."""
        home, roles = next(iter(self._roles[name].items()))
        is_here = any(self.world.at(role.mesh, role.fixed) is not None for role in roles)
        return is_here and self.world.rank == self._first(home, roles)

    def _first(self, home: _Home, roles: list[RoleEntry]) -> int:
        """The lowest rank of a home that has the same elements as this one."""
        mesh = self.world.meshes[home.mesh]
        at = mesh.coordinates(self.world.rank)
        assert at is not None
        same = {axis: at[axis] for axis in home.axes}
        alike = (role.fixed for role in roles if all(same.get(a, c) == c for a, c in role.fixed.items()))
        return min(mesh.rank(dict.fromkeys(mesh.axes, 0) | same | fixed) for fixed in alike)


def _homes(role: RoleEntry) -> Iterator[tuple[str, _Home]]:
    for flat in role.flats:
        for weight in flat.weights:
            yield weight.name, _Home(role.mesh, weight.takes, flat.number, flat.sharded)
    for other in role.others:
        yield other.name, _Home(role.mesh, other.takes)


# -- outputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptOutput:
    """The parts of an output that this rank keeps: in its slot, one for each coordinate of the time indices.

    `at` are the coordinates of the rank. Of all ranks that keep the same parts, one `owns` them.
    """

    output: RequestedOutput
    at: dict[str, int]
    owns: bool

    @property
    def name(self) -> str:
        """The output's name."""
        return self.output.name

    def parts(self, values: Mapping[tuple[str, At], torch.Tensor]) -> Iterator[Placed]:
        """The parts at the end of a step, each with its positions on every axis of the whole output."""
        output, taken = self.output, {axis for take in self.output.takes for axis in take.axes}
        ranges = [range(n) if name in taken else (0,) for name, n in output.time.items()]
        for chosen in itertools.product(*ranges):
            fixed = dict(zip(output.time, chosen, strict=True))
            summed = [range(n) if name in output.sums else (fixed[name],) for name, n in output.time.items()]
            addends = [values[output.slot, at] for at in itertools.product(*summed)]
            places = positions(output.shape, _taken(output.takes, {**self.at, **fixed}))
            yield places, torch.stack(addends).sum(0) if len(addends) > 1 else addends[0]


def kept_outputs(table: Table, world: World) -> list[KeptOutput]:
    """The outputs of which this rank keeps parts."""
    found = []
    for output in table.outputs:
        at = world.at(output.mesh, output.fixed)
        if at is not None:
            alike = at.keys() - {axis for take in output.takes for axis in take.axes} - output.fixed.keys()
            found.append(KeptOutput(output, at, owns=not any(at[axis] for axis in alike)))
    return found
