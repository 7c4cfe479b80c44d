"""Parts of tensors that this rank has: of inputs, of the model's weights and buffers, and of outputs.

A weight may live in several places, its *homes*. All ranks of a home have it, each a part; so one home is enough to
save it, the first, and in it of the ranks with equal elements the one with the lowest number: that one *owns* them.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..program.initial_state import InitialState
from ..program.table import AxisTake, RequestedOutput, RoleEntry, Table, TensorEntry
from ..ranks.world import World
from ..step.weights import Weights
from .cut import Piece, Take, positions

At = tuple[int, ...]
Placed = tuple[list[torch.Tensor], torch.Tensor]  # positions on every axis of the whole, and the part


def pieces_of(tensors: Iterable[TensorEntry], role: RoleEntry, world: World) -> list[Piece]:
    """This rank's parts of some weights, or inputs, of its role."""
    at = world.at(role.mesh, role.fixed)
    assert at is not None
    return [Piece(t.name, t.shape, _taken(t.takes, at)) for t in tensors]


def _taken(takes: Iterable[AxisTake], at: Mapping[str, int]) -> tuple[Take, ...]:
    return tuple((dim, outer, parts, at[axis]) for axis, dim, outer, parts in takes)


# -- weights and buffers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalTensor:
    """What this rank holds of a tensor of the model: a piece, or under ZeRO some elements of the flattened piece.

    `name` is the model's own, the first of a tied weight's. `span` are the elements [start, stop) of the flattened
    piece, None for all. `tensor` has the piece's shape, or is [stop - start]; writing to it changes what is trained.
    `owns`: of all ranks that hold these elements, this is the one that saves and counts them.
    """

    name: str
    piece: Piece
    span: tuple[int, int] | None
    tensor: torch.Tensor
    owns: bool

    @classmethod
    def whole(cls, name: str, tensor: torch.Tensor, owns: bool = True) -> "LocalTensor":
        """A tensor that a rank holds in full."""
        return cls(name, Piece(name, tuple(tensor.shape)), None, tensor, owns)


def local_tensors(weights: Weights, pieces: dict[str, Piece], owners: "ReplicaOwners") -> list[LocalTensor]:
    """What this rank holds, trained weights first, then the others and the buffers."""
    trained = [(name, *found) for flat in weights.flats for name, found in flat.stepped().items()]
    others = [(name, None, tensor) for name, tensor in weights.buffers.items()]
    return [LocalTensor(name, pieces[name], span, x, owners.owns(name)) for name, span, x in (*trained, *others)]


def untrained(table: Table, state: InitialState, names: Iterable[str]) -> list[LocalTensor]:
    """Copies of the weights and buffers that no role has, for the first rank to save: weights that nothing reads, and
    buffers that are constants of programs. With them a checkpoint has the model's whole state.

    `names` are those of the whole state, a tied weight's first alone.
    """
    used = {w.name for role in table.roles for w in role.weights}
    return [LocalTensor.whole(name, state[name].detach().clone()) for name in names if name not in used]


@dataclass(frozen=True)
class _Home:
    """Ranks of one mesh that have a tensor cut alike; `flat` is the number of the flat parameter that it is in."""

    mesh: str
    takes: tuple[AxisTake, ...]
    flat: int | None = None
    shard_axes: tuple[str, ...] = ()

    @property
    def axes(self) -> set[str]:
        """The axes along which ranks have different elements."""
        return {axis for axis, *_ in self.takes} | set(self.shard_axes)


class ReplicaOwners:
    """Which of the ranks that hold the same elements saves and counts them, by the table that all ranks have."""

    def __init__(self, table: Table, world: World) -> None:
        self.world = world
        self._roles: dict[str, dict[_Home, list[RoleEntry]]] = {}
        for role in table.roles:
            for name, home in _homes(role):
                self._roles.setdefault(name, {}).setdefault(home, []).append(role)

    def owns(self, name: str) -> bool:
        """Whether of all ranks that hold the same elements of a tensor as this one, this one saves and counts them."""
        home, roles = next(iter(self._roles[name].items()))
        is_here = any(self.world.at(role.mesh, role.fixed) is not None for role in roles)
        return is_here and self.world.rank == self._first(home, roles)

    def _first(self, home: _Home, roles: list[RoleEntry]) -> int:
        """The lowest rank of a home that holds the same elements as this one."""
        mesh = self.world.meshes[home.mesh]
        at = mesh.coordinates(self.world.rank)
        assert at is not None
        same = {axis: at[axis] for axis in home.axes}
        alike = (role.fixed for role in roles if all(same.get(a, c) == c for a, c in role.fixed.items()))
        return min(mesh.rank(dict.fromkeys(mesh.axes, 0) | same | fixed) for fixed in alike)


def _homes(role: RoleEntry) -> Iterator[tuple[str, _Home]]:
    for flat in role.flats:
        for weight in flat.weights:
            yield weight.name, _Home(role.mesh, weight.takes, flat.number, flat.shard_axes)
    for other in role.others:
        yield other.name, _Home(role.mesh, other.takes)


# -- outputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptOutput:
    """What this rank keeps of an output: in its slot, a part for each coordinate of the indices in time.

    `at` are the coordinates of the rank. Of all ranks that keep the same parts one `owns` them.
    """

    output: RequestedOutput
    at: dict[str, int]
    owns: bool

    @property
    def name(self) -> str:
        """The output's."""
        return self.output.name

    def parts(self, values: Mapping[tuple[str, At], torch.Tensor]) -> Iterator[Placed]:
        """The parts that the rank keeps at the end of a step, each with its positions on every axis of the whole."""
        output, taken = self.output, {take.axis for take in self.output.takes}
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
            alike = at.keys() - {take.axis for take in output.takes} - output.fixed.keys()
            found.append(KeptOutput(output, at, owns=not any(at[axis] for axis in alike)))
    return found
