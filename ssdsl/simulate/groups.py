"""Which ranks talk to each other: the groups along some axes of a submesh, and who sends to whom in a transfer."""

import itertools
import math
from collections.abc import Iterator

from ssdsl.lower.layout import Submesh
from ssdsl.lower.schedule import Move, Piece

Ranks = tuple[int, ...]


def groups_along(submesh: Submesh, axes: tuple[str, ...]) -> list[Ranks]:
    """The groups of ranks that differ in these axes only."""
    ranks = dict(zip(itertools.product(*(range(n) for _, n in submesh.axes)), submesh.ranks(), strict=True))
    names = [a for a, _ in submesh.axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for at, rank in ranks.items():
        groups.setdefault(tuple(c for a, c in zip(names, at, strict=True) if a not in axes), []).append(rank)
    return [tuple(g) for g in groups.values()]


def pairs(move: Move, source: Submesh, target: Submesh) -> Iterator[tuple[int, int, int]]:
    """Source rank, target rank and elements of each piece; of aligned coordinates the first and the last."""
    sizes = dict(source.axes)
    corners = [(0,) * len(move.aligned), tuple(sizes[a] - 1 for a in move.aligned)]
    for corner in dict.fromkeys(corners):
        held = dict(zip(move.aligned, corner, strict=True))
        for piece in move.pieces:
            yield _rank(source, held, piece.source), _rank(target, held, piece.target), _elements(piece)


def _elements(piece: Piece) -> int:
    return math.prod(length for _, length in piece.target_box)


def _rank(submesh: Submesh, held: dict[str, int], free: tuple[int, ...]) -> int:
    at = dict(submesh.fixed) | held
    at |= dict(zip((a for a, _ in submesh.axes if a not in held), free, strict=True))
    rank = 0
    for name, n in submesh.mesh.axes:
        rank = rank * n + at.get(name, 0)
    return submesh.mesh.first + rank
