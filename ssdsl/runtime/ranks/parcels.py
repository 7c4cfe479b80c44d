"""Tensors of several shapes and types from ranks to ranks, as one message from each to each."""

from collections.abc import Mapping, Sequence

import torch

from .world import Group

Parcels = Mapping[int, Sequence[torch.Tensor]]  # by a rank's index in the group


def exchange_tensors(group: Group, sends: Parcels, gets: Parcels) -> int:
    """Sends tensors to other ranks, and fills those of `gets` with what others send: of the same numbers of elements
    and types, in the same order. Returns the bytes that came."""
    parts = {rank: torch.cat([_bytes(tensor) for tensor in found]) for rank, found in sends.items()}
    into = {
        rank: torch.empty(sum(t.nbytes for t in found), dtype=torch.uint8, device=found[0].device)
        for rank, found in gets.items()
    }
    group.exchange(into, parts)
    for rank, found in gets.items():
        for tensor, piece in zip(found, torch.split(into[rank], [t.nbytes for t in found]), strict=True):
            tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))
    return sum(message.numel() for message in into.values())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
