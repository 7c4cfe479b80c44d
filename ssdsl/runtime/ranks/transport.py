"""How ranks exchange tensors: the one interface through which a program communicates, and torch.distributed behind it.

All ranks of a group make the same calls on it in the same order. Tensors are contiguous.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

Merge = Literal["sum", "max"]
Rows = tuple[list[int], list[int]]  # how many a rank receives from each rank of a group, and sends it

# torch 2.13 renames these two; either name works on either version.
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_MERGES = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class PendingWork(Protocol):
    """Communication that has been started."""

    def wait(self) -> Any:
        """Blocks until it is done; tensors may be read and overwritten after that."""

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        ...


@dataclass(frozen=True)
class Works:
    """Several of them; `sent` is what must live until they are done."""

    works: Sequence[PendingWork]
    sent: Any = None

    def wait(self) -> None:
        """Blocks until all are done."""
        for work in self.works:
            work.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return all(work.is_completed() for work in self.works)


class Transport(Protocol):
    """What a rank can say to others. `group` is what `new_group` returned."""

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def new_group(self, ranks: Sequence[int] | None = None) -> Any:
        """A group of some ranks, or of all; called by all ranks alike."""

    def new_control_group(self) -> Any:
        """A group of all ranks for tensors on the CPU, whatever the device; called by all ranks alike."""

    def barrier(self) -> None:
        """Waits until all ranks are here."""

    def all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> None:
        """`x`: its sum, or maximum, over the ranks."""

    def start_all_reduce(self, x: torch.Tensor, group: Any) -> PendingWork:
        """`x`: its sum over the ranks, once the work has been waited for."""
        ...

    def all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        """`into` [ranks * n]: the ranks' `x` [n], end to end."""

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        """`into` [n]: this rank's part of the sum of `x` [ranks * n]."""

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None) -> None:
        """`into` [ranks * n]: for each rank, end to end, the part of its `x` that stands at this rank's place. With
        `rows` the parts are so many rows of the first axis; those of two ranks for each other agree."""

    def start_exchange(
        self, into: Mapping[int, torch.Tensor], parts: Mapping[int, torch.Tensor], group: Any
    ) -> PendingWork:
        """Starts to send some ranks a part each, and to fill `into` with what they send; all tensors by the rank."""
        ...

    def isend(self, x: torch.Tensor, peer: int, group: Any, tag: int) -> PendingWork:
        """Starts to send `x`, which must not change until the work is done. Sends of one tag arrive in order."""
        ...

    def irecv(self, into: torch.Tensor, peer: int, group: Any, tag: int) -> PendingWork:
        """Starts to receive into a tensor of the size that is sent."""
        ...


@dataclass(frozen=True)
class Distributed:
    """The transport of ranks that are processes. `timeout` is how long a rank waits in a group: groups do not inherit
    that of all ranks."""

    timeout: timedelta | None = None

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def new_group(self, ranks: Sequence[int] | None = None) -> Any:
        return dist.new_group(None if ranks is None else list(ranks), timeout=self.timeout)

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def new_control_group(self) -> Any:
        return dist.new_group(backend="gloo", timeout=self.timeout)

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> None:
        dist.all_reduce(x, op=_MERGES[merge], group=group)

    def start_all_reduce(self, x: torch.Tensor, group: Any) -> PendingWork:
        work: PendingWork = dist.all_reduce(x, group=group, async_op=True)
        return work

    def all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        _gather(into, x, group=group)

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        _scatter(into, x, group=group)

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None) -> None:
        received, sent = (None, None) if rows is None else rows
        dist.all_to_all_single(into, x, received, sent, group=group)

    def start_exchange(
        self, into: Mapping[int, torch.Tensor], parts: Mapping[int, torch.Tensor], group: Any
    ) -> PendingWork:
        calls = [dist.P2POp(dist.irecv, x, peer, group) for peer, x in into.items()]
        calls += [dist.P2POp(dist.isend, x, peer, group) for peer, x in parts.items()]
        return Works(dist.batch_isend_irecv(calls) if calls else (), parts)

    def isend(self, x: torch.Tensor, peer: int, group: Any, tag: int) -> PendingWork:
        work: PendingWork | None = dist.isend(x, peer, group=group, tag=tag)
        assert work is not None
        return work

    def irecv(self, into: torch.Tensor, peer: int, group: Any, tag: int) -> PendingWork:
        work: PendingWork | None = dist.irecv(into, peer, group=group, tag=tag)
        assert work is not None
        return work
