"""Tensors of several shapes and types from ranks to ranks, as a few messages from each to each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from .transport import PendingWork
from .world import Group

Parcels = Mapping[int, Sequence[torch.Tensor]]  # by a rank's index in the group
MOST_BYTES, LEAST_BYTES = 4 << 20, 1 << 18  # of a message; one tensor may have more
SHARE = 16  # messages for all that goes from a rank to another one, so that little of it lies in buffers at once


class _Round(NamedTuple):
    """A message from each rank to each, under way: the tensors that wait for it, and its buffers."""

    work: PendingWork
    tensors: Mapping[int, Sequence[torch.Tensor]]
    into: Mapping[int, torch.Tensor]

    def end(self) -> int:
        """Fills the tensors. Returns the bytes that came."""
        self.work.wait()
        for rank, tensors in self.tensors.items():
            parts = torch.split(self.into[rank], [t.nbytes for t in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
        return sum(message.numel() for message in self.into.values())


def exchange_tensors(group: Group, sends: Parcels, gets: Parcels) -> int:
    """Sends tensors to other ranks, and fills those of `gets` with what others send: of the same numbers of elements
    and types, in the same order. Returns the bytes that came. A message travels while the one before is taken out."""
    outgoing, incoming = ({rank: [*_messages(found)] for rank, found in of.items()} for of in (sends, gets))
    before, came = None, 0
    for number in range(max(map(len, (*outgoing.values(), *incoming.values())), default=0)):
        out, found = ({r: m[number] for r, m in of.items() if number < len(m)} for of in (outgoing, incoming))
        running = _started(group, out, found)
        came += before.end() if before is not None else 0
        before = running
    return came + (before.end() if before is not None else 0)


def _started(group: Group, sends: Parcels, gets: Parcels) -> _Round:
    parts = {rank: torch.cat([_bytes(tensor) for tensor in tensors]) for rank, tensors in sends.items()}
    into = {
        rank: torch.empty(sum(t.nbytes for t in tensors), dtype=torch.uint8, device=tensors[0].device)
        for rank, tensors in gets.items()
    }
    return _Round(group.start_exchange(into, parts), gets, into)


def _messages(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields the tensors of each message, in order; both ends find the same ones.

    >>> [len(message) for message in _messages([torch.empty(size << 14) for size in (0, 1, 2, 5, 9)])]
    [3, 1, 1]
    """
    most = max(LEAST_BYTES, min(MOST_BYTES, sum(tensor.nbytes for tensor in tensors) // SHARE))
    message: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if message and size + tensor.nbytes > most:
            yield message
            message, size = [], 0
        message.append(tensor)
        size += tensor.nbytes
    if message:
        yield message


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
