"""Whole tensors from the pieces that the ranks hold, checking that the pieces cover them and that copies agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch

from ssdsl.run.errors import PiecesDisagree, PiecesIncomplete
from ssdsl.text.diagnostic import PlanError

COPIES = 1e-5
"""How far two copies of a number may be apart, relative to the tensor's largest: about 100 roundings of fp32.

Copies that the same operators computed in the same order are equal to the bit; sums in another order are not.
"""


class Piece(TypedDict):
    """What a rank holds of a tensor of this full shape.

    A take `(dim, outer, n, k)` views axis `dim` as (outer, n, rest) and keeps index k of the middle one. Takes apply in
    order.
    """

    shape: tuple[int, ...]
    takes: list[tuple[int, int, int, int]]
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Held:
    """A rank's piece with the places of the full tensor that it holds: one index vector per axis."""

    rank: int
    places: tuple[torch.Tensor, ...]
    tensor: torch.Tensor


def assemble(what: str, ranks: Mapping[int, Mapping[str, Piece]]) -> dict[str, torch.Tensor]:
    """Every tensor in full, by name; `what` (as in "weight") is for the diagnostics."""
    names = dict.fromkeys(name for pieces in ranks.values() for name in pieces)
    return {name: _assemble(what, name, {r: p[name] for r, p in ranks.items() if name in p}) for name in names}


def _assemble(what: str, name: str, pieces: dict[int, Piece]) -> torch.Tensor:
    first = next(iter(pieces.values()))
    full = torch.zeros(first["shape"], dtype=first["tensor"].dtype)
    owner = torch.full(first["shape"], -1)
    for rank, piece in pieces.items():
        held = _held(what, name, rank, piece, full)
        _compare(what, name, held, full[held.places], owner[held.places])
        full[held.places] = held.tensor
        owner[held.places] = rank
    if (owner < 0).any():
        place = tuple((owner < 0).nonzero()[0].tolist())
        raise PlanError(
            PiecesIncomplete(None, what, name, f"no rank holds element {list(place)} of {list(full.shape)}")
        )
    return full


def _held(what: str, name: str, rank: int, piece: Piece, full: torch.Tensor) -> _Held:
    """The places of a piece; each axis's vector is shaped to broadcast against those of the others."""
    places, tensor = [torch.arange(size) for size in piece["shape"]], piece["tensor"].detach()
    for dim, outer, n, k in piece["takes"]:
        if len(places[dim]) % (outer * n):
            reason = f"rank {rank} takes part {k} of {outer} x {n} of axis {dim}, which has {len(places[dim])} elements"
            raise PlanError(PiecesIncomplete(None, what, name, reason))
        places[dim] = places[dim].view(outer, n, -1)[:, k].reshape(-1)
    expected = [len(p) for p in places]
    if tuple(piece["shape"]) != tuple(full.shape) or list(tensor.shape) != expected or tensor.dtype != full.dtype:
        holds = f"rank {rank} holds {tensor.dtype} {list(tensor.shape)} where {full.dtype} {expected} belongs"
        raise PlanError(PiecesIncomplete(None, what, name, holds))
    return _Held(rank, torch.meshgrid(*places, indexing="ij") if places else (), tensor)


def _compare(what: str, name: str, held: _Held, known: torch.Tensor, owner: torch.Tensor) -> None:
    """Raise where an earlier rank holds the same element with another value."""
    if not (owner >= 0).any():
        return
    got, old = held.tensor.double(), known.double()
    allowed = COPIES * float(old.nan_to_num().abs().max())
    wrong = (owner >= 0) & ~torch.isclose(got, old, rtol=0, atol=allowed, equal_nan=True)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        place = [int(axis[at]) for axis in held.places]
        values = float(old[at]), float(got[at])
        raise PlanError(PiecesDisagree(None, what, name, int(owner[at]), held.rank, str(place), *values))
