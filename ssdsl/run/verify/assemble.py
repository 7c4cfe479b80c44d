"""Assembles whole tensors from the ranks' pieces, which must cover them, and records how far copies differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch

from ssdsl.run.errors import PiecesIncomplete
from ssdsl.run.verify.compare import tensors
from ssdsl.runtime.layout.cut import Take, elements_at, positions
from ssdsl.text.diagnostic import PlanError

Places = tuple[torch.Tensor, ...]  # positions in the full tensor, one index vector per axis


class RankPiece(TypedDict):
    """A rank's piece of a tensor of this full shape, and how it was cut out (ssdsl/runtime/layout/cut.py)."""

    shape: tuple[int, ...]
    takes: list[Take]
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class CopySpread:
    """The two ranks' copies of an element that differ most, among all copies of a tensor."""

    error: float
    first: int
    second: int
    index: tuple[int, ...]
    first_value: float
    second_value: float


@dataclass(frozen=True, slots=True)
class WholeTensors:
    """Full tensors by name; `spreads` has those whose copies on two ranks differ."""

    tensors: dict[str, torch.Tensor]
    spreads: dict[str, CopySpread]


def assemble(what: str, ranks: Mapping[int, Mapping[str, RankPiece]]) -> WholeTensors:
    """Every tensor in full; `what` (as in "weight") is for the diagnostics.

    Raises PlanError if the pieces do not cover a tensor. The caller decides whether copies differ too much, because it
    knows how far rounding may take them.
    """
    names = dict.fromkeys(name for pieces in ranks.values() for name in pieces)
    whole = WholeTensors({}, {})
    for name in names:
        held = {rank: pieces[name] for rank, pieces in ranks.items() if name in pieces}
        whole.tensors[name], spread = _assemble(what, name, held)
        if spread is not None:
            whole.spreads[name] = spread
    return whole


def _assemble(what: str, name: str, pieces: dict[int, RankPiece]) -> tuple[torch.Tensor, CopySpread | None]:
    first = next(iter(pieces.values()))
    full = torch.zeros(first["shape"], dtype=first["tensor"].dtype)
    owner = torch.full(first["shape"], -1)
    spreads = []
    for rank, piece in pieces.items():
        places, tensor = _places(what, name, rank, piece, full), piece["tensor"].detach()
        spreads.append(_spread(rank, places, tensor, full[places], owner[places]))
        full[places] = tensor
        owner[places] = rank
    if (owner < 0).any():
        place = tuple((owner < 0).nonzero()[0].tolist())
        raise PlanError(
            PiecesIncomplete(None, what, name, f"no rank holds element {list(place)} of {list(full.shape)}")
        )
    return full, max((s for s in spreads if s is not None), key=lambda s: s.error, default=None)


def _places(what: str, name: str, rank: int, piece: RankPiece, full: torch.Tensor) -> Places:
    """The positions of a piece; each axis's vector is shaped to broadcast against the others."""
    places, tensor = positions(piece["shape"], piece["takes"]), piece["tensor"].detach()
    expected = [len(p) for p in places]
    if tuple(piece["shape"]) != tuple(full.shape) or list(tensor.shape) != expected or tensor.dtype != full.dtype:
        holds = f"rank {rank} holds {tensor.dtype} {list(tensor.shape)} where {full.dtype} {expected} belongs"
        raise PlanError(PiecesIncomplete(None, what, name, holds))
    return elements_at(places)


def _spread(
    rank: int, places: Places, tensor: torch.Tensor, known: torch.Tensor, owner: torch.Tensor
) -> CopySpread | None:
    """The element where an earlier rank's copy differs most from this one's; NaN differs from every number."""
    if not (owner >= 0).any():
        return None
    found = tensors("copy", "", tensor, torch.where(owner >= 0, known, tensor))
    if not found.error:
        return None
    place = tuple(int(axis[found.index]) for axis in places)
    return CopySpread(found.error, int(owner[found.index]), rank, place, found.expected, found.got)
