"""What a rank holds of the model's tensors."""

from dataclasses import dataclass

import torch

from .piece import Piece


@dataclass(frozen=True, eq=False)
class Held:
    """What this rank holds of a logical tensor: a piece, or under ZeRO some elements of the flattened piece.

    `name` is the model's own, the first of a tied weight's. `span` are the elements [start, stop) of the flattened
    piece, None for all. `tensor` has the piece's shape, or is [stop - start]; writing to it changes what is trained.
    `owns`: of all ranks that hold these elements, this is the one that saves and counts them.
    """

    name: str
    piece: Piece
    span: tuple[int, int] | None
    tensor: torch.Tensor
    owns: bool
