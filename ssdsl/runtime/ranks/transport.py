"""Communication of a rank with others over torch.distributed; other transports are subclasses.

All ranks of a group make the same calls in the same order. Tensors are contiguous. Each call starts communication and
returns at once: until the `wait` of what it returns, nobody may read what arrives, nor change what leaves.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

SETTLES_S = 0.05
Merge = Literal["sum", "max"]
Ends = Sequence[tuple[int, torch.Tensor]]  # ranks, and what they send or are sent
Rows = tuple[list[int], list[int]]  # rows received from each rank of a group, and rows sent to each

# torch 2.13 renames these two; either version works with either name
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_MERGES = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class PendingWork(Protocol):
    """Communication that has been started."""

    def wait(self) -> Any:
        """Blocks until it is done; after that its tensors may be read and overwritten."""


class SendingWork(PendingWork, Protocol):
    """The sending of tensors, which can be freed when it is done."""

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        ...


@dataclass(frozen=True)
class Works:
    """Several works as one; `sent` keeps tensors alive until they are done, and `then` is called when they are."""

    works: Sequence[Any]
    sent: Any = None
    then: Callable[[], object] = lambda: None

    def wait(self) -> None:
        """Blocks until all are done."""
        for work in self.works:
            work.wait()
        self.then()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return all(work.is_completed() for work in self.works)


@dataclass(frozen=True)
class StartedExchange:
    """Messages that started together: the works of those that arrive and of those that leave, in the order given. Some
    may be the same work."""

    arriving: Sequence[PendingWork]
    leaving: Sequence[SendingWork]

    def wait(self) -> None:
        """Blocks until all are done."""
        Works((*self.arriving, *self.leaving)).wait()


@cache
def _receiving_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of a GPU that computes nothing. NCCL carries out what is started in it after the work of the current
    stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _as_real(x: torch.Tensor) -> torch.Tensor:
    """A view of complex numbers as pairs, because NCCL takes real ones only; torch makes it in its other calls."""
    return torch.view_as_real(x) if x.is_complex() else x


def settle() -> None:
    """Gives torch's threads a moment to let go of the tensors of the last calls; for the end of a script.

    One that frees a tensor needs Python's lock. If Python is ending by then, C++ aborts the process.
    """
    time.sleep(SETTLES_S)


@dataclass(eq=False)
class Transport:
    """Communication of one rank with others, which are processes. `group` is a result of `new_group`.

    `timeout` limits the waiting in a group; groups do not inherit it from the default group. Groups are bound to the
    `device`, if one is given. NCCL then makes a group's communicator at once, and carries out its sends and receives in
    their order.
    """

    timeout: timedelta | None = None
    device: torch.device | None = None

    @property
    def rank(self) -> int:
        """This rank's number."""
        return dist.get_rank()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return dist.get_world_size()

    def new_group(self, ranks: Sequence[int] | None = None) -> Any:
        """Makes a group of some ranks, or of all; called by all ranks alike."""
        backend = None if self.device is None else "nccl"  # the default group may have another one for the CPU
        members = None if ranks is None else list(ranks)
        return dist.new_group(members, timeout=self.timeout, backend=backend, device_id=self.device)

    def new_control_group(self) -> Any:
        """Makes a group of all ranks for CPU tensors, whatever the device; called by all ranks alike."""
        backend = None if self.device is None else "gloo"
        return dist.new_group(backend=backend, timeout=self.timeout)

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        dist.barrier()

    def start_all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> PendingWork:
        """Starts to replace `x` by its sum, or maximum, over the ranks."""
        return _work(dist.all_reduce(x, op=_MERGES[merge], group=group, async_op=True))

    def start_all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        """Starts to fill `into` [ranks * n] with the ranks' `x` [n], concatenated."""
        return _work(_gather(into, x, group=group, async_op=True))

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        """Starts to fill `into` [n] with this rank's part of the sum of `x` [ranks * n]."""
        return _work(_scatter(_as_real(into), _as_real(x), group=group, async_op=True))

    def start_all_to_all(
        self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None
    ) -> PendingWork:
        """Starts to transpose parts over ranks: `into[k] = x_of_rank_k[me]`, with `into` and `x` [ranks * n] viewed as
        [ranks, n]. With `rows`, parts have these numbers of rows of the first axis; both ends must agree on them."""
        received, sent = (None, None) if rows is None else rows
        return _work(dist.all_to_all_single(into, x, received, sent, group=group, async_op=True))

    def receiving(self) -> AbstractContextManager[Any]:
        """Within it buffers are made, and receives start, that wait for no computation of this rank."""
        return nullcontext() if self.device is None else torch.cuda.stream(_receiving_stream(self.device))

    def start_exchange(self, into: Ends, parts: Ends, group: Any, tag: int = 0) -> StartedExchange:
        """Starts to send parts to ranks, which must not change until they are sent, and to fill `into` with what ranks
        send.

        Messages of one group and tag between two ranks arrive in order. NCCL knows no tags, and carries out the
        exchanges of a group one after another: on all ranks they start in one order.
        """
        if self.device is None:
            arriving: list[Any] = [dist.irecv(x, peer, group, tag) for peer, x in into]
            leaving: list[Any] = [dist.isend(x, peer, group, tag) for peer, x in parts]
            return StartedExchange(arriving, leaving)
        calls = [dist.P2POp(dist.irecv, x, peer, group, tag) for peer, x in into]
        calls += [dist.P2POp(dist.isend, x, peer, group, tag) for peer, x in parts]
        works = list[Any](dist.batch_isend_irecv(calls)) if calls else []
        if len(works) < len(calls):  # NCCL makes one of them
            works = works * len(calls)
        return StartedExchange(works[: len(into)], works[len(into) :])

    def start_broadcast(self, x: torch.Tensor, source: int, group: Any) -> PendingWork:
        """Starts to fill `x` on all ranks of a group with that of the rank `source`, which must not change until it is
        sent."""
        octets = x.view(-1).view(torch.uint8)  # gloo broadcasts numbers of some dtypes only
        return _work(dist.broadcast(octets, source, group, async_op=True))


def _work(work: Any) -> PendingWork:
    """The work of a call of torch.distributed, which has none in a group without this rank."""
    return Works(()) if work is None else work
