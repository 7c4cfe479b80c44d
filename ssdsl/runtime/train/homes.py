"""Whole weights for an optimizer that needs them: gradients go home, the optimizer steps there, the weights come back.

A plan says so by `split model.optimizer by matrix into dp`; the table names the ranks of each weight's home. What a
rank holds of a weight between steps stays as it is: all of it, a part (tensor parallelism), or some elements of a part
(ZeRO); also nothing, if its elements are on other ranks.

With a weight [4, 2] in two parts, whose home is rank 1:

| | rank 0 | rank 1 |
|---|---|---|
| gradients | sends its [2, 2] | has [4, 2] |
| step | | of all of the weight |
| weights | gets its [2, 2] | sends it |

Ranks that have the same elements send them once; the home sends itself nothing. A rank sends another one message at
most, with the weights in the order of their names.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..layout.cut import Piece
from ..program.initial_state import InitialState
from ..program.table import HomeEntry, RoleEntry, Table
from ..ranks.parcels import exchange_tensors
from ..ranks.world import Group, World
from ..step.flat_params import FlatWeights
from ..step.parts import LocalTensor
from .optimizer import OptimizedParam, begun

Span = tuple[int, int] | None
Tensors = Mapping[str, torch.Tensor]


def has_homes(table: Table) -> bool:
    """Whether the optimizer steps on whole weights at their homes."""
    return any(home is not None for role in table.roles for flat in role.flats for home in flat.homes)


@dataclass(frozen=True)
class _Part:
    """What a rank holds of a weight: a piece, or some elements of the flattened piece. `owns`: for all ranks that have
    the same."""

    piece: Piece
    span: Span
    owns: bool

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The elements of a whole tensor, [elements]."""
        found = self.piece.of(whole).flatten()
        return found if self.span is None else found[slice(*self.span)]

    @cached_property
    def places(self) -> torch.Tensor:
        """The positions of the elements in the flattened whole tensor."""
        return self.of(torch.arange(torch.Size(self.piece.shape).numel()).view(self.piece.shape))

    def room(self, whole: torch.Tensor) -> torch.Tensor:
        """A tensor for the elements."""
        return whole.new_empty(len(self.places))

    def put(self, whole: torch.Tensor, elements: torch.Tensor) -> None:
        """Writes the elements into a whole tensor."""
        whole.view(-1)[self.places.to(whole.device)] = elements.flatten()


@dataclass(frozen=True)
class _Weight:
    """A weight with a home: a rank, and the parts of the ranks that have the weight together with it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    home: int
    parts: dict[int, _Part]

    @cached_property
    def senders(self) -> list[int]:
        """The ranks that send a part home, each part once: the home itself where it has the part."""
        seen: dict[tuple[Any, Span], int] = {}
        for rank in sorted(self.parts, key=lambda rank: (rank != self.home, rank)):
            seen.setdefault((self.parts[rank].piece.takes, self.parts[rank].span), rank)
        return sorted(seen.values())


class Homes:
    """This rank's end of the exchange; all ranks make one, and call its methods together. `names` are the weights with
    a home of which this rank is one of the ranks; `params` are those whose home it is, on which its optimizer steps.

    `masters` has initial values of float32 copies of weights in half precision.
    """

    def __init__(
        self,
        role: RoleEntry | None,
        world: World,
        flats: Sequence[FlatWeights],
        held: Sequence[LocalTensor],
        device: torch.device,
        masters: InitialState | None,
        on_host: Collection[str] = (),
    ) -> None:
        self.local = {one.name: one.tensor for one in held}
        self.moved_bytes = 0  # that this rank got from others
        self.rank, self.has_masters = world.rank, masters is not None
        group = world.new_group("homes", list(range(world.transport.size)))
        assert group is not None, "all ranks are in it"
        self.group: Group = group
        self.weights = [*_weights(role, world, held)]
        self.names = frozenset(weight.name for weight in self.weights)
        self.params: list[OptimizedParam] = []
        flat_of = {slot.name: flat for flat in flats for slot in flat.slots}
        for weight in (w for w in self.weights if w.home == self.rank):
            whole = torch.empty(weight.shape, dtype=weight.dtype, device=device)
            owns = any(part.owns for part in weight.parts.values())
            one = LocalTensor.whole(weight.name, whole, owns)
            self.params.append(
                OptimizedParam(one, flat_of[weight.name], torch.nn.Parameter(begun(one, masters, on_host)))
            )
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        self._bring(self.local, {p.name: p.held.tensor for p in self.params})
        for param in self.params if not self.has_masters else ():
            if param.is_copy:
                param.parameter.copy_(param.held.tensor)

    @torch.no_grad()
    def refresh(self) -> None:
        """Brings the weights home as they are now, when some have been set. A float32 copy takes the elements that
        are others than before."""
        now = {p.name: torch.empty_like(p.held.tensor) for p in self.params}
        self._bring(self.local, now)
        for param in self.params:
            if param.is_copy:
                new = now[param.name].to(param.parameter.dtype)
                param.parameter.copy_(torch.where(now[param.name] == param.held.tensor, param.parameter, new))
            param.held.tensor.copy_(now[param.name])

    @torch.no_grad()
    def take(self, gradients: Tensors, names: Collection[str]) -> None:
        """Brings the gradients of the weights with these names home, and gives them to the optimizer's parameters.
        `gradients` are of this rank's parts; a missing one is zero."""
        mine = {n: gradients[n] if n in gradients else self._zeros(n) for n in names if n in self.local}
        here = {
            p.name: torch.zeros_like(p.parameter, device=p.held.tensor.device) for p in self.params if p.name in names
        }
        self._bring(mine, here)
        for param in (p for p in self.params if p.name in here):
            param.parameter.grad = here[param.name].to(param.parameter.device)

    def _zeros(self, name: str) -> torch.Tensor:
        tensor = self.local[name]
        return torch.zeros_like(tensor, dtype=self.gradient_dtype(tensor))

    def gradient_dtype(self, weight: torch.Tensor) -> torch.dtype:
        """The type in which a weight's gradient comes home: that of what the optimizer steps on."""
        return torch.float32 if self.has_masters and weight.is_floating_point() else weight.dtype

    @torch.no_grad()
    def spread(self, names: Collection[str]) -> None:
        """Gives all ranks their parts of the weights with these names, as the optimizer has left them."""
        here = {p.name: p for p in self.params}
        sends: dict[int, list[torch.Tensor]] = {}
        gets: dict[int, list[torch.Tensor]] = {}
        for weight in (w for w in self.weights if w.name in names):
            if weight.home != self.rank:
                if weight.name in self.local:
                    gets.setdefault(weight.home, []).append(self.local[weight.name])
                continue
            param = here[weight.name]
            param.parameter.grad = None
            param.give_back()
            for rank, part in weight.parts.items():
                if rank == self.rank:
                    mine = self.local[weight.name]
                    mine.copy_(part.of(param.held.tensor).view_as(mine))
                else:
                    sends.setdefault(rank, []).append(part.of(param.held.tensor))
        self.moved_bytes += exchange_tensors(self.group, sends, gets)

    def _bring(self, parts: Tensors, into: Tensors) -> None:
        """Fills whole tensors at home from the parts of all ranks."""
        sends: dict[int, list[torch.Tensor]] = {}
        gets: dict[int, list[tuple[_Part, torch.Tensor]]] = {}
        for weight in (w for w in self.weights if w.name in parts or w.name in into):
            for sender in weight.senders:
                part = weight.parts[sender]
                if sender == self.rank == weight.home:
                    part.put(into[weight.name], parts[weight.name])
                elif sender == self.rank:
                    sends.setdefault(weight.home, []).append(parts[weight.name])
                elif weight.home == self.rank:
                    gets.setdefault(sender, []).append((part, into[weight.name]))
        room = {rank: [part.room(whole) for part, whole in found] for rank, found in gets.items()}
        self.moved_bytes += exchange_tensors(self.group, sends, room)
        for rank, elements in room.items():
            for (part, whole), new in zip(gets[rank], elements, strict=True):
                part.put(whole, new)


# -- who has what ------------------------------------------------------------------------------------------------------


def _weights(role: RoleEntry | None, world: World, held: Iterable[LocalTensor]) -> Iterator[_Weight]:
    """Yields the weights with homes on this rank's devices, in the order of their names. Ranks tell each other what
    they hold."""
    mine = {one.name: (one.piece.takes, one.span, one.owns, _word(one.tensor.dtype)) for one in held}
    told = [json.loads(text) for text in world.control.all_gather(json.dumps(mine).encode())]
    if role is None:
        return
    mesh, homes, ranks_of = world.meshes[role.mesh], dict(_homes(role)), home_ranks(role, world)
    here = mesh.coordinates(world.rank)
    assert here is not None
    for name in sorted(homes):
        shape, home = homes[name]
        others = {axis: at for axis, at in here.items() if axis not in home.axes}
        holding = (rank for rank in range(mesh.first, mesh.first + mesh.size) if name in told[rank])
        ranks = [rank for rank in holding if others.items() <= (mesh.coordinates(rank) or {}).items()]
        parts = {rank: _part(name, shape, *told[rank][name][:3]) for rank in ranks}
        dtype = getattr(torch, told[ranks[0]][name][3])
        yield _Weight(name, shape, dtype, ranks_of[name], parts)


def home_ranks(role: RoleEntry | None, world: World) -> dict[str, int]:
    """For each weight with a home on this rank's devices, the rank of its home."""
    if role is None:
        return {}
    mesh = world.meshes[role.mesh]
    here = mesh.coordinates(world.rank)
    assert here is not None
    return {name: mesh.rank(here | dict(zip(home.axes, home.at, strict=True))) for name, (_, home) in _homes(role)}


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _homes(role: RoleEntry) -> Iterator[tuple[str, tuple[tuple[int, ...], HomeEntry]]]:
    for flat in role.flats:
        for weight, home in zip(flat.weights, flat.homes, strict=False):
            if home is not None:
                yield weight.name, (weight.shape, home)


def _part(name: str, shape: tuple[int, ...], takes: Any, span: Any, owns: bool) -> _Part:
    return _Part(Piece(name, shape, _tuples(takes)), _tuples(span), owns)


def _tuples(told: Any) -> Any:
    return tuple(map(_tuples, told)) if isinstance(told, list) else told
