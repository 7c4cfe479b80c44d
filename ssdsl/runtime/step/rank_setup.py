"""Sets up one rank from the table: its role, groups, weights, and its end of every message."""

import math
from collections.abc import Iterator

import torch

from ..layout.cut import Piece
from ..layout.portions import joint_portions
from ..program.initial_state import InitialState
from ..program.table import (
    FlatEntry,
    MoveEntry,
    Parcel,
    RoleEntry,
    SignalEntry,
    Steps,
    SubmeshEntry,
    Table,
    TransferEntry,
)
from ..ranks.transfers import Box, Broadcast, Leg, Message, Peer, SentSignal, ValueTransfer
from ..ranks.world import Group, World
from .completion import CompletionStep, FlatCut, GradientCompletion, Levels
from .flat_params import Stays, Tie, make_flat_param
from .parts import pieces_of
from .weights import Weights


def join_world(table: Table, world: World) -> None:
    """Registers the table's meshes with this rank, and makes its groups: of axes, of lanes (one for values and one for
    gradients), of broadcasts. All ranks call it, and make the same groups in the same order."""
    world.join(table.meshes, [(group.mesh, group.axes) for group in table.groups])
    for _ in range(len(world.transfers), max((m.lane + 1 for m in table.messages), default=0)):
        world.transfers.append((world.transport.new_group(), world.transport.new_group()))
    for way in (way for m in table.messages for way in _ways(m)):
        for ranks in _broadcasts(*way, world).values():
            if ranks not in world.broadcasts:
                world.broadcasts[ranks] = world.new_group("broadcast", list(ranks))


def role_of(table: Table, world: World) -> RoleEntry | None:
    """This rank's role; None for a rank without work in the plan."""
    return next((r for r in table.roles if world.at(r.mesh, r.fixed) is not None), None)


# -- messages --------------------------------------------------------------------------------------------------------


def messages_of(table: Table, world: World) -> dict[int, Message]:
    """All messages, with this rank's ends of them."""
    found: dict[int, Message] = {}
    for m in table.messages:
        forward, *back = (_leg(*way, world) for way in _ways(m))
        if isinstance(m, SignalEntry):
            found[m.number] = SentSignal(forward, lane=m.lane)
            continue
        backward = back[0] if back else None
        dtype = getattr(torch, m.dtype)
        found[m.number] = ValueTransfer(
            m.source_slot, m.target_slot, forward, backward, dtype, m.time, m.uneven, m.lane
        )
    return found


def _ways(message: SignalEntry | TransferEntry) -> Iterator[tuple[MoveEntry, SubmeshEntry, SubmeshEntry]]:
    """Yields a message's way there, and its gradient's back if it has one: what moves, from where, and to where."""
    yield message.forward, message.source, message.target
    if isinstance(message, TransferEntry) and message.backward is not None:
        yield message.backward, message.target, message.source


def _leg(move: MoveEntry, source: SubmeshEntry, target: SubmeshEntry, world: World) -> Leg:
    """This rank's sends and receives of one direction of a message. Pieces of the table name ranks by coordinates along
    the axes that are not aligned; along the aligned axes, sender and receiver have this rank's own coordinates."""
    here, there = world.at(source.mesh, source.fixed), world.at(target.mesh, target.fixed)
    broadcasts = _broadcasts(move, source, target, world)
    numbers = {key: number for number, key in enumerate(broadcasts)}

    def end(piece: Parcel, sender: int, peer: int) -> Peer:
        """The other rank of a piece, or the broadcast that carries it; a copy within a rank is no broadcast."""
        key = sender, piece.source_box
        if peer == world.rank or key not in broadcasts:
            return peer
        group = world.broadcasts[broadcasts[key]]
        assert group is not None
        return Broadcast(numbers[key], sender, group)

    sends, gets = [], []
    for piece in move.pieces:
        if here is not None and _free(here, source, move) == piece.source:
            receiver = _peer(target, world, move, here, piece.target)
            sends.append((end(piece, world.rank, receiver), piece.source_box))
        if there is not None and _free(there, target, move) == piece.target:
            sender = _peer(source, world, move, there, piece.source)
            gets.append((end(piece, sender, sender), piece.target_box))
    # the receivers of a broadcast have a piece each, and it is sent once
    return Leg(tuple(dict.fromkeys(sends)), tuple(gets), move.source_shape, move.target_shape)


def _broadcasts(
    move: MoveEntry, source: SubmeshEntry, target: SubmeshEntry, world: World
) -> dict[tuple[int, Box], tuple[int, ...]]:
    """The ranks of each broadcast, in the order in which they start, by the sender and its box. A box for one receiver
    alone is no broadcast."""
    found: dict[tuple[int, Box], set[int]] = {}
    for rank in _ranks(source, world) if move.broadcast else ():
        at = world.at(source.mesh, source.fixed, rank)
        assert at is not None
        for piece in move.pieces:
            if _free(at, source, move) == piece.source:
                ranks = found.setdefault((rank, piece.source_box), {rank})
                ranks.add(_peer(target, world, move, at, piece.target))
    return {key: tuple(sorted(ranks)) for key, ranks in found.items() if len(ranks) > 2}


def _free(at: dict[str, int], place: SubmeshEntry, move: MoveEntry) -> tuple[int, ...]:
    """The coordinates along the axes of a submesh that are not aligned, as pieces name them."""
    return tuple(at[a] for a in place.axes if a not in move.aligned)


def _peer(place: SubmeshEntry, world: World, move: MoveEntry, mine: dict[str, int], free: tuple[int, ...]) -> int:
    """The rank of a submesh at the coordinates `mine` along the aligned axes, and `free` along its others."""
    mesh = world.meshes[place.mesh]
    at = dict.fromkeys(mesh.axes, 0) | place.fixed
    at |= {a: mine[a] for a in move.aligned}
    at |= dict(zip((a for a in place.axes if a not in move.aligned), free, strict=True))
    return mesh.rank(at)


# -- weights ---------------------------------------------------------------------------------------------------------


def weights_of(
    table: Table,
    role: RoleEntry,
    world: World,
    state: InitialState,
    device: torch.device,
    half: torch.dtype | None = None,
) -> Weights:
    """This rank's weights, cut out of the whole ones or computed; also makes the groups of tied weights.

    With `half`, floating-point weights have this type.
    """

    def part(piece: Piece) -> torch.Tensor:
        tensor = state.part(piece, device)
        return tensor.to(half) if half is not None and tensor.is_floating_point() else tensor

    ties = tie_groups(table, world)
    flats = []
    for flat in role.flats:
        pieces = pieces_of(flat.weights, role, world)
        values = {p.name: part(p) for p in pieces}
        levels = Levels(*(_cut(world, role, flat, axes) if axes else None for axes in flat.sharded))
        steps = [step for steps in flat.completion for step in steps]
        tie = ties[flat.weights[0].name] if any(kind == "sum_tied" for kind, _ in steps) else None
        cuts = [axes for kind, axes in steps if kind in ("narrow", "reduce_scatter")]
        parts = math.prod(sum(_cut(world, role, flat, axes).portions) for axes in cuts)
        kept = Stays(_cut(world, role, flat, flat.kept) if flat.kept else None) if flat.kept is not None else None
        flats.append(
            make_flat_param(flat.number, values, levels, tie, parts, flat.ahead, kept, flat.on_host == "weights")
        )
    others = {p.name: part(p).clone() for p in pieces_of(role.others, role, world)}
    return Weights(flats, others, world)


def completions_of(role: RoleEntry, world: World) -> dict[int, GradientCompletion]:
    """The completions of the gradients of each of a role's flat parameters, by its number."""

    def steps(flat: FlatEntry, found: Steps) -> tuple[CompletionStep, ...]:
        return tuple(CompletionStep(kind, _cut(world, role, flat, axes)) for kind, axes in found if axes)

    return {flat.number: GradientCompletion(*(steps(flat, of) for of in flat.completion)) for flat in role.flats}


def _cut(world: World, role: RoleEntry, flat: FlatEntry, axes: tuple[str, ...]) -> FlatCut:
    """The parts of a flat parameter over some axes."""
    return FlatCut(world.groups[role.mesh, axes], joint_portions(axes, world.meshes[role.mesh].axes, flat.portions))


def tie_groups(table: Table, world: World) -> dict[str, Tie]:
    """For each weight with copies on several submeshes, the group in which this rank sums its gradient, if it has a
    copy. All ranks call it, and make the same groups in the same order."""
    ties = {}
    made: dict[tuple[int, ...], Group | None] = {}
    for weight, places in table.ties.items():
        copies = [_ranks(place, world) for place in places]  # the ranks that have each copy
        for ranks in _tied_ranks(copies):
            if ranks not in made:
                made[ranks] = world.new_group("tied", list(ranks))
            if (group := made[ranks]) is not None:
                ties[weight] = Tie(group, _are_alike(copies) or any(world.rank == copy[0] for copy in copies))
    return ties


def _ranks(place: SubmeshEntry, world: World) -> list[int]:
    """The ranks of a submesh, in order."""
    mesh = world.meshes[place.mesh]
    return [r for r in range(mesh.first, mesh.first + mesh.size) if world.at(place.mesh, place.fixed, r) is not None]


def _are_alike(copies: list[list[int]]) -> bool:
    """Whether all copies of a weight are on equally many ranks, and so cut into the same parts."""
    return len({len(ranks) for ranks in copies}) == 1


def _tied_ranks(copies: list[list[int]]) -> list[tuple[int, ...]]:
    """The groups of ranks that sum a tied weight. Copies on equally many ranks are summed part by part; else every rank
    has the whole weight, and all ranks sum together."""
    if _are_alike(copies):
        return [tuple(sorted(ranks)) for ranks in zip(*copies, strict=True)]
    return [tuple(sorted(r for ranks in copies for r in ranks))]
