"""Sets up one rank from the table: its role, groups, weights, and its end of every message."""

import math

import torch

from ..layout.cut import Piece
from ..layout.parts import pieces_of
from ..layout.transfers import Leg, Message, SentSignal, ValueTransfer
from ..program.initial_state import InitialState
from ..program.table import MoveEntry, RoleEntry, SignalEntry, Steps, SubmeshEntry, Table
from ..step.completion import CompletionStep, GradientCompletion, Levels
from ..step.flat_params import Tie, make_flat_param
from ..step.weights import Weights
from .world import Group, World


def join_world(table: Table, world: World) -> None:
    """Registers the table's meshes and groups with this rank."""
    world.join(table.meshes, [(group.mesh, group.axes) for group in table.groups])
    for _ in range(len(world.transfers), max((m.lane + 1 for m in table.messages), default=0)):
        world.transfers.append((world.transport.new_group(), world.transport.new_group()))


def role_of(table: Table, world: World) -> RoleEntry | None:
    """This rank's role; None for a rank without work in the plan."""
    return next((r for r in table.roles if world.at(r.mesh, r.fixed) is not None), None)


# -- messages --------------------------------------------------------------------------------------------------------


def messages_of(table: Table, world: World) -> dict[int, Message]:
    """All messages, with this rank's ends of them."""
    found: dict[int, Message] = {}
    for m in table.messages:
        forward = _leg(m.forward, m.source, m.target, world)
        if isinstance(m, SignalEntry):
            found[m.number] = SentSignal(forward, lane=m.lane)
            continue
        backward = _leg(m.backward, m.target, m.source, world) if m.backward is not None else None
        dtype = getattr(torch, m.dtype)
        found[m.number] = ValueTransfer(
            m.source_slot, m.target_slot, forward, backward, dtype, m.time, m.uneven, m.lane
        )
    return found


def _leg(move: MoveEntry, source: SubmeshEntry, target: SubmeshEntry, world: World) -> Leg:
    here, there = world.at(source.mesh, source.fixed), world.at(target.mesh, target.fixed)
    sends, gets = [], []
    for piece in move.pieces:
        if here is not None and _free(here, source, move) == piece.source:
            sends.append((_peer(target, world, move, here, piece.target), piece.source_box))
        if there is not None and _free(there, target, move) == piece.target:
            gets.append((_peer(source, world, move, there, piece.source), piece.target_box))
    return Leg(tuple(sends), tuple(gets), move.source_shape, move.target_shape)


def _free(at: dict[str, int], place: SubmeshEntry, move: MoveEntry) -> tuple[int, ...]:
    return tuple(at[a] for a in place.axes if a not in move.aligned)


def _peer(place: SubmeshEntry, world: World, move: MoveEntry, mine: dict[str, int], free: tuple[int, ...]) -> int:
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
        tensor = state.part(piece)
        return tensor.to(device, half if tensor.is_floating_point() else None)

    ties = tie_groups(table, world)
    flats = []
    for flat in role.flats:
        pieces = pieces_of(flat.weights, role, world)
        values = {p.name: part(p) for p in pieces}
        levels = Levels(*(world.groups[role.mesh, axes] if axes else None for axes in flat.sharded))
        steps = [step for steps in flat.completion for step in steps]
        tie = ties[flat.weights[0].name] if any(kind == "sum_tied" for kind, _ in steps) else None
        cuts = [axes for kind, axes in steps if kind in ("chunk", "reduce_scatter")]
        parts = math.prod(world.groups[role.mesh, axes].size for axes in cuts)
        flats.append(make_flat_param(flat.number, values, levels, tie, parts))
    others = {p.name: part(p).clone() for p in pieces_of(role.others, role, world)}
    return Weights(flats, others, world)


def completions_of(role: RoleEntry, world: World) -> dict[int, GradientCompletion]:
    """The completions of the gradients of each of a role's flat parameters, by its number."""

    def steps(found: Steps) -> tuple[CompletionStep, ...]:
        return tuple(CompletionStep(kind, world.groups[role.mesh, axes]) for kind, axes in found if axes)

    return {flat.number: GradientCompletion(*map(steps, flat.completion)) for flat in role.flats}


def tie_groups(table: Table, world: World) -> dict[str, Tie]:
    """The summation of the gradients of each weight that lives on several submeshes; called by all ranks alike."""
    ties = {}
    made: dict[tuple[int, ...], Group | None] = {}
    for weight, places in table.ties.items():
        homes = [_ranks(place, world) for place in places]
        for ranks in _tied_ranks(homes):
            if ranks not in made:
                made[ranks] = world.new_group("tied", list(ranks))
            if (group := made[ranks]) is not None:
                ties[weight] = Tie(group, _are_alike(homes) or any(world.rank == home[0] for home in homes))
    return ties


def _ranks(place: SubmeshEntry, world: World) -> list[int]:
    mesh = world.meshes[place.mesh]
    return [r for r in range(mesh.first, mesh.first + mesh.size) if world.at(place.mesh, place.fixed, r) is not None]


def _are_alike(homes: list[list[int]]) -> bool:
    return len({len(home) for home in homes}) == 1


def _tied_ranks(homes: list[list[int]]) -> list[tuple[int, ...]]:
    """The groups that sum a tied weight. Homes of equal size sum part by part; else every rank has the whole weight,
    and all ranks sum together."""
    if _are_alike(homes):
        return [tuple(sorted(ranks)) for ranks in zip(*homes, strict=True)]
    return [tuple(sorted(r for home in homes for r in home))]
