"""Collectives and messages as steps: which bytes a rank sends to whom, and what it does with those that arrive.

Ranks form a ring: each sends to the next one. Tensors are flat. With S bytes of data, n ranks and a bandwidth B:

    all_reduce                   2 (n - 1) / n  S / B, after 2 (n - 1) latencies
    all_gather, reduce_scatter     (n - 1) / n  S / B, after (n - 1) latencies (S: all parts together)
    broadcast, reduce                           S / B, after (n - 1) latencies and as many blocks
    all_to_all, gather, scatter      the largest part, after a latency: each travels on a link of its own

Source of the rings: Patarasu and Yuan 2009.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .network import BLOCK, Receive, Send, Steps

Merge = Callable[..., Tensor]
_OPS = dist.ReduceOp
MERGES: dict[object, Merge] = {
    _OPS.SUM: torch.add,
    _OPS.AVG: torch.add,  # and a division at the end
    _OPS.PRODUCT: torch.mul,
    _OPS.MIN: torch.minimum,
    _OPS.MAX: torch.maximum,
    _OPS.BAND: torch.bitwise_and,
    _OPS.BOR: torch.bitwise_or,
    _OPS.BXOR: torch.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Ring:
    """The ranks of a group, in its order, and this rank's place among them."""

    ranks: tuple[int, ...]
    place: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def left(self) -> int:
        """The rank that sends to this one."""
        return self.ranks[self.place - 1]

    @property
    def right(self) -> int:
        """The rank to which this one sends."""
        return self.ranks[(self.place + 1) % self.size]

    def before(self, count: int) -> int:
        """The place so many ranks before this one."""
        return (self.place - count) % self.size


def send(to: int, x: Tensor) -> Steps:
    """Sends a tensor to a rank."""
    yield Send(to, x.view(torch.uint8))


def _blocks(x: Tensor) -> Iterator[Tensor]:
    """The parts of a tensor that travel as one block each."""
    yield from torch.split(x, BLOCK // x.element_size()) if x.numel() else ()


def receive(sources: tuple[int, ...], into: Tensor, mine: Tensor | None = None, merge: Merge = torch.add) -> Steps:
    """Fills a tensor with what a rank sends; with `mine`, with the merge of both. If several ranks may send, it is the
    first that does."""
    for part, addend in zip(_blocks(into), _blocks(into if mine is None else mine), strict=True):
        octets = yield Receive(sources, part.nbytes)
        theirs = octets.view(part.dtype)
        if mine is None:
            part.copy_(theirs)
        else:
            merge(addend, theirs, out=part)


def _divide(ring: Ring, total: Tensor, op: object) -> None:
    """Makes a mean of a sum, if that is asked for."""
    if op == _OPS.AVG:
        is_whole = not (total.is_floating_point() or total.is_complex())
        total.div_(ring.size, rounding_mode="trunc" if is_whole else None)


def reduce_scatter(ring: Ring, into: Tensor, parts: Sequence[Tensor], op: object, in_place: bool = False) -> Steps:
    """Fills `into` with the merge of all ranks' part for this rank. `in_place`: parts may be overwritten, and `into` is
    one of them.

    What becomes the part of place k starts at k + 1, is merged with each rank's own, and ends at k.
    """
    leaving = parts[ring.before(1)]
    if ring.size == 1:
        into.copy_(leaving)
    for step in range(1, ring.size):
        yield from send(ring.right, leaving)
        mine = parts[ring.before(step + 1)]
        is_last = step == ring.size - 1
        leaving = into if is_last else mine if in_place else torch.empty_like(mine)
        yield from receive((ring.left,), leaving, mine, MERGES[op])
    _divide(ring, into, op)


def all_gather(ring: Ring, parts: Sequence[Tensor], mine: Tensor) -> Steps:
    """Fills a part for each rank with what that rank has."""
    parts[ring.place].copy_(mine)
    for step in range(ring.size - 1):
        yield from send(ring.right, parts[ring.before(step)])
        yield from receive((ring.left,), parts[ring.before(step + 1)])


def all_reduce(ring: Ring, x: Tensor, op: object) -> Steps:
    """Replaces a tensor by its merge over the ranks. All get the same bits, since one rank merges each part."""
    parts = x.tensor_split(ring.size)
    yield from reduce_scatter(ring, parts[ring.place], parts, op, in_place=True)
    yield from all_gather(ring, parts, parts[ring.place])


def all_to_all(ring: Ring, into: Sequence[Tensor], parts: Sequence[Tensor]) -> Steps:
    """Sends a part to each rank, and fills `into` with what they send."""
    into[ring.place].copy_(parts[ring.place])
    for step in range(1, ring.size):
        to = (ring.place + step) % ring.size
        yield from send(ring.ranks[to], parts[to])
    for step in range(1, ring.size):
        source = ring.before(step)
        yield from receive((ring.ranks[source],), into[source])


def broadcast(ring: Ring, x: Tensor, root: int) -> Steps:
    """Passes a tensor on from the rank at place `root` to all, block after block."""
    for part in _blocks(x):
        if ring.place != root:
            yield from receive((ring.left,), part)
        if (ring.place + 1) % ring.size != root:
            yield from send(ring.right, part)


def reduce(ring: Ring, x: Tensor, root: int, op: object) -> Steps:
    """Replaces the tensor of the rank at place `root` by its merge over the ranks; the others' stay as they are."""
    for part in _blocks(x):
        leaving = part
        if ring.before(1) != root:
            leaving = part if ring.place == root else torch.empty_like(part)
            yield from receive((ring.left,), leaving, part, MERGES[op])
        if ring.place != root:
            yield from send(ring.right, leaving)
    if ring.place == root:
        _divide(ring, x, op)


def gather(ring: Ring, into: Sequence[Tensor], x: Tensor, root: int) -> Steps:
    """Fills `into`, on the rank at place `root`, with the ranks' tensors."""
    if ring.place != root:
        yield from send(ring.ranks[root], x)
        return
    into[root].copy_(x)
    for step in range(1, ring.size):
        yield from receive((ring.ranks[ring.before(step)],), into[ring.before(step)])


def scatter(ring: Ring, into: Tensor, parts: Sequence[Tensor], root: int) -> Steps:
    """Fills each rank's `into` with its part of those of the rank at place `root`."""
    if ring.place != root:
        yield from receive((ring.ranks[root],), into)
        return
    into.copy_(parts[root])
    for rank, part in zip(ring.ranks, parts, strict=True):
        if rank != ring.ranks[root]:
            yield from send(rank, part)
