"""Reads `program.json` as one rank sees it: its role, tasks, weights and its share of every transfer."""

from typing import Any

import torch

from .flat_params import Completion, Tie, make_flat_param
from .mesh import Mesh
from .piece import Piece
from .regions import Regions
from .state import State
from .transfers import Leg, Message, Signal, Transfer
from .weights import Weights
from .world import Group, World

Table = dict[str, Any]


def join_world(table: Table, world: World) -> None:
    """Makes the meshes and groups of the table known to this rank."""
    meshes = [Mesh(m["name"], m["axes"], m["first"]) for m in table["meshes"]]
    world.join(meshes, [(g["mesh"], tuple(g["axes"])) for g in table["groups"]])
    for _ in range(len(world.transfers), max((m["lane"] + 1 for m in table["messages"]), default=0)):
        world.transfers.append((world.transport.new_group(), world.transport.new_group()))


def is_at(place: Table, world: World, rank: int | None = None) -> dict[str, int] | None:
    """The coordinates of a rank, if not told this one, in a place (a mesh with some axes fixed); None outside it."""
    at = world.meshes[place["mesh"]].coordinates(world.rank if rank is None else rank)
    return at if at is not None and all(at[a] == c for a, c in place["fixed"].items()) else None


def role_of(table: Table, world: World) -> Table | None:
    """This rank's role; None for a rank that the plan gives nothing to do."""
    return next((r for r in table["roles"] if is_at(r, world) is not None), None)


# -- messages --------------------------------------------------------------------------------------------------------


def messages_of(table: Table, world: World) -> dict[int, Message]:
    """All messages, with this rank's legs."""
    found: dict[int, Message] = {}
    for m in table["messages"]:
        forward = _leg(m["forward"], m["source"], m["target"], world)
        if "signal" in m:
            found[m["number"]] = Signal(forward, lane=m["lane"])
            continue
        backward = _leg(m["backward"], m["target"], m["source"], world) if m["backward"] else None
        uneven = {int(k): (v[0], tuple(v[1])) for k, v in m["uneven"].items()}
        slots = m["source_slot"], m["target_slot"]
        dtype = getattr(torch, m["dtype"])
        found[m["number"]] = Transfer(*slots, forward, backward, dtype, tuple(m["time"]), uneven, m["lane"])
    return found


def _leg(move: Table, source: Table, target: Table, world: World) -> Leg:
    here, there = is_at(source, world), is_at(target, world)
    sends, gets = [], []
    for at_source, at_target, source_box, target_box in move["pieces"]:
        if here is not None and _free(here, source, move) == at_source:
            sends.append((_peer(target, world, move, here, at_target), _box(source_box)))
        if there is not None and _free(there, target, move) == at_target:
            gets.append((_peer(source, world, move, there, at_source), _box(target_box)))
    shapes = (tuple(map(tuple, move[key])) for key in ("source_shape", "target_shape"))
    return Leg(tuple(sends), tuple(gets), *shapes)


def _free(at: dict[str, int], place: Table, move: Table) -> list[int]:
    return [at[a] for a in place["axes"] if a not in move["aligned"]]


def _peer(place: Table, world: World, move: Table, mine: dict[str, int], free: list[int]) -> int:
    mesh = world.meshes[place["mesh"]]
    at = dict.fromkeys(mesh.axes, 0) | place["fixed"]
    at |= {a: mine[a] for a in move["aligned"]}
    at |= dict(zip((a for a in place["axes"] if a not in move["aligned"]), free, strict=True))
    return mesh.rank(at)


def _box(box: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, length) for start, length in box)


# -- weights ---------------------------------------------------------------------------------------------------------


def pieces_of(tensors: list[Table], role: Table, world: World) -> list[Piece]:
    """This rank's parts of some weights, or inputs, of its role."""
    at = is_at(role, world)
    assert at is not None
    return [
        Piece(t["name"], tuple(t["shape"]), tuple((dim, outer, n, at[axis]) for axis, dim, outer, n in takes_of(t)))
        for t in tensors
    ]


def takes_of(tensor: Table) -> tuple[tuple[str, int, int, int | Regions], ...]:
    """How ranks cut a tensor: (axis, dim, outer, the number of equal parts, or the regions of others)."""
    return tuple((axis, dim, outer, _parts(n)) for axis, dim, outer, n in tensor["takes"])


def _parts(written: Any) -> int | Regions:
    """The count of equal parts, or the regions of others."""
    return written if isinstance(written, int) else tuple(tuple((s, e) for s, e in runs) for runs in written)


def weights_of(
    table: Table, role: Table, world: World, state: State, device: torch.device, half: torch.dtype | None = None
) -> Weights:
    """This rank's weights, cut out of the whole ones, or made; the groups of tied weights are made here.

    With `half` floating-point numbers are of this type.
    """

    def part(piece: Piece) -> torch.Tensor:
        tensor = state.part(piece)
        return tensor.to(device, half if tensor.is_floating_point() else None)

    ties = tie_groups(table, world)
    flats = []
    for flat in role["flats"]:
        pieces = pieces_of(flat["weights"], role, world)
        values = {p.name: part(p) for p in pieces}
        shard_group = world.groups[role["mesh"], tuple(flat["shard_axes"])] if flat["shard_axes"] else None
        tied = any(kind == "sum_tied" for kind, _ in flat["completion"])
        tie = ties[flat["weights"][0]["name"]] if tied else None
        flats.append(make_flat_param(flat["number"], values, flat["zero"], shard_group, tie))
    others = {p.name: part(p).clone() for p in pieces_of(role["others"], role, world)}
    return Weights(flats, others, world)


def completions_of(role: Table, world: World) -> dict[int, list[Completion]]:
    """How a program completes the gradients of each flat parameter of a role, by its number."""
    groups = {axes: group for (mesh, axes), group in world.groups.items() if mesh == role["mesh"]}
    return {
        flat["number"]: [Completion(kind, groups[tuple(axes)]) for kind, axes in flat["completion"] if axes]
        for flat in role["flats"]
    }


def tie_groups(table: Table, world: World) -> dict[str, Tie]:
    """For each weight on several submeshes, how its gradients are summed; called by all ranks alike."""
    ties = {}
    made: dict[tuple[int, ...], Group | None] = {}
    for weight, places in table["ties"].items():
        homes = [_ranks(place, world) for place in places]
        for ranks in _tied_ranks(homes):
            if ranks not in made:
                made[ranks] = world.new_group("tied", list(ranks))
            if (group := made[ranks]) is not None:
                ties[weight] = Tie(group, _are_alike(homes) or any(world.rank == home[0] for home in homes))
    return ties


def _ranks(place: Table, world: World) -> list[int]:
    mesh = world.meshes[place["mesh"]]
    return [r for r in range(mesh.first, mesh.first + mesh.size) if is_at(place, world, r) is not None]


def _are_alike(homes: list[list[int]]) -> bool:
    return len({len(home) for home in homes}) == 1


def _tied_ranks(homes: list[list[int]]) -> list[tuple[int, ...]]:
    """Homes of one size sum part by part; of others every rank has the whole weight, and all sum together."""
    if _are_alike(homes):
        return [tuple(sorted(ranks)) for ranks in zip(*homes, strict=True)]
    return [tuple(sorted(r for home in homes for r in home))]
