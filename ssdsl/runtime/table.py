"""Reads `program.json` as one rank sees it: its role, tasks, weights and its share of every transfer."""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .engine import Task
from .mesh import WORLD, Group, Mesh
from .moves import take
from .transfers import Leg, Transfer
from .weights import Tie, Unit, Weights

Table = dict[str, Any]


def join_world(table: Table, rank: int) -> None:
    """Makes the meshes and groups of the table known to this process."""
    meshes = [Mesh(m["name"], m["axes"], m["first"]) for m in table["meshes"]]
    WORLD.join(rank, meshes, [(g["mesh"], tuple(g["axes"])) for g in table["groups"]])
    if table["transfers"]:
        WORLD.transfers = (dist.new_group(timeout=WORLD.timeout), dist.new_group(timeout=WORLD.timeout))


def is_at(place: Table, rank: int) -> dict[str, int] | None:
    """The coordinates of a rank in a place (a mesh with some axes fixed), None outside it."""
    at = WORLD.meshes[place["mesh"]].coordinates(rank)
    return at if at is not None and all(at[a] == c for a, c in place["fixed"].items()) else None


def role_of(table: Table, rank: int) -> Table | None:
    """This rank's role; None for a rank that the plan gives nothing to do."""
    return next((r for r in table["roles"] if is_at(r, rank) is not None), None)


def tasks_of(role: Table) -> list[Task]:
    tasks = []
    for text in role["tasks"]:
        letter, number, at = re.fullmatch(r"(\w)(\d+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
        tasks.append(Task(letter, int(number), tuple(int(c) for c in at.split(",") if c.strip())))
    return tasks


# -- transfers -------------------------------------------------------------------------------------------------------


def transfers_of(table: Table, rank: int) -> dict[int, Transfer]:
    """The transfers in which this rank takes part, with its legs."""
    found = {}
    for t in table["transfers"]:
        forward = _leg(t["forward"], t["source"], t["target"], rank)
        backward = _leg(t["backward"], t["target"], t["source"], rank) if t["backward"] else None
        uneven = {int(k): (v[0], tuple(v[1])) for k, v in t["uneven"].items()}
        dtype = getattr(torch, t["dtype"])
        slots = t["source_slot"], t["target_slot"]
        found[t["number"]] = Transfer(*slots, forward, backward, dtype, tuple(t["time"]), uneven)
    return found


def _leg(move: Table, source: Table, target: Table, rank: int) -> Leg:
    here, there = is_at(source, rank), is_at(target, rank)
    sends, gets = [], []
    for at_source, at_target, source_box, target_box in move["pieces"]:
        if here is not None and _free(here, source, move) == at_source:
            sends.append((_peer(target, move, here, at_target), _box(source_box)))
        if there is not None and _free(there, target, move) == at_target:
            gets.append((_peer(source, move, there, at_source), _box(target_box)))
    shapes = (tuple(map(tuple, move[key])) for key in ("source_shape", "target_shape"))
    return Leg(tuple(sends), tuple(gets), *shapes)


def _free(at: dict[str, int], place: Table, move: Table) -> list[int]:
    return [at[a] for a in place["axes"] if a not in move["aligned"]]


def _peer(place: Table, move: Table, mine: dict[str, int], free: list[int]) -> int:
    mesh = WORLD.meshes[place["mesh"]]
    at = dict.fromkeys(mesh.axes, 0) | place["fixed"]
    at |= {a: mine[a] for a in move["aligned"]}
    at |= dict(zip((a for a in place["axes"] if a not in move["aligned"]), free, strict=True))
    return mesh.rank(at)


def _box(box: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, length) for start, length in box)


# -- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """How the local part of a weight follows from the whole: takes of (dim, outer, count, index)."""

    name: str
    shape: tuple[int, ...]
    takes: tuple[tuple[int, int, int, int], ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        for taken in self.takes:
            whole = take(whole, *taken)
        return whole.contiguous()

    def saved(self, local: torch.Tensor) -> dict[str, Any]:
        """The part with the way it was cut out, from which the whole can be put together again."""
        return {"shape": self.shape, "takes": list(self.takes), "tensor": local.detach().cpu().clone()}


def pieces_of(homes: list[Table], role: Table, rank: int) -> list[Piece]:
    at = is_at(role, rank)
    assert at is not None
    return [
        Piece(h["name"], tuple(h["shape"]), tuple((dim, outer, n, at[axis]) for axis, dim, outer, n in h["takes"]))
        for h in homes
    ]


def weights_of(table: Table, role: Table, rank: int, state: dict[str, torch.Tensor], device: torch.device) -> Weights:
    """This rank's weights, cut out of the whole ones; the groups of weights tied across submeshes are made here."""
    ties = tie_groups(table, rank)
    units = []
    for unit in role["units"]:
        pieces = pieces_of(unit["weights"], role, rank)
        values = {p.name: p.of(state[p.name]).to(device) for p in pieces}
        partial, over = tuple(unit["partial"]), tuple(unit["over"])
        rest = tuple(a for a in partial if a not in over)
        units.append(
            Unit(
                values,
                _group(role, partial),
                _group(role, rest) if over else None,
                _group(role, over),
                unit["cut"],
                ties.get(unit["weights"][0]["name"]) if unit["tied"] else None,
                all(a in partial for a in over),
            )
        )
    others = {p.name: p.of(state[p.name]).to(device) for p in pieces_of(role["others"], role, rank)}
    return Weights(units, others)


def _group(role: Table, axes: tuple[str, ...]) -> Group | None:
    return WORLD.groups[role["mesh"], axes] if axes else None


def tie_groups(table: Table, rank: int) -> dict[str, Tie]:
    """For each weight on several submeshes, how its gradients are summed; called by all ranks alike."""
    ties = {}
    made: dict[tuple[int, ...], Any] = {}
    for weight, places in table["ties"].items():
        homes = [_ranks(place) for place in places]
        for ranks in _tied_ranks(homes):
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout=WORLD.timeout)
            if rank in ranks:
                group = Group("tied", ranks, ranks.index(rank), made[ranks])
                ties[weight] = Tie(group, _are_alike(homes) or any(rank == home[0] for home in homes))
    return ties


def _ranks(place: Table) -> list[int]:
    mesh = WORLD.meshes[place["mesh"]]
    return [r for r in range(mesh.first, mesh.first + mesh.size) if is_at(place, r) is not None]


def _are_alike(homes: list[list[int]]) -> bool:
    return len({len(home) for home in homes}) == 1


def _tied_ranks(homes: list[list[int]]) -> list[tuple[int, ...]]:
    """Homes of one size sum part by part; of others every rank has the whole weight, and all sum together."""
    if _are_alike(homes):
        return [tuple(sorted(ranks)) for ranks in zip(*homes, strict=True)]
    return [tuple(sorted(r for home in homes for r in home))]
