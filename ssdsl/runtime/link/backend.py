"""The backend `ssdsl_link` of torch.distributed: a process group whose calls travel over the emulated network.

Collectives of a group run one after another, as NCCL's do; those of other groups, and messages, run beside them and
share the links. The environment variable SSDSL_LINK has the speed of the links.
"""

import os
import time
import zlib
from collections.abc import Iterable
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup

from .collectives import (
    Ring,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    receive,
    reduce,
    reduce_scatter,
    scatter,
    send,
)
from .host import VARIABLE
from .network import Channel, EmulatedNetwork, Operation, Steps
from .speed import Speed

BACKEND = "ssdsl_link"
COLLECTIVE = -1  # the tag


class LinkWork(dist.Work):
    """A started operation of a group."""

    def __init__(self, ring: Ring, results: list[Tensor]) -> None:
        super().__init__()
        self.operation: Operation
        self._ring, self._results = ring, results
        self._future = torch.futures.Future[list[Tensor]]()

    def finish(self, error: Exception | None) -> None:
        """Lets those go on that wait for it."""
        if error is None:
            self._future.set_result(self._results)
        else:
            self._future.set_exception(error)  # type: ignore[arg-type]  # of torch's stub

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self.operation.error is None

    def exception(self) -> Exception | None:
        return self.operation.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._results

    def get_future(self) -> Any:
        return self._future

    def _source_rank(self) -> int:
        """The place in the group of the rank that sent what was received."""
        return self._ring.ranks.index(self.operation.source)


_ProcessGroup: Any = dist.ProcessGroup  # its stub has overloads for calls that torch does not make


class LinkGroup(_ProcessGroup):  # type: ignore[misc]  # of class Any
    """A process group over the emulated network. torch calls its methods by these names; `opts` has the root and
    the reduction."""

    def __init__(self, network: EmulatedNetwork, name: str, ring: Ring, timeout: timedelta) -> None:
        super().__init__(ring.place, ring.size)
        self._network, self._ring, self._timeout_s = network, ring, timeout.total_seconds()
        self._number = zlib.crc32(name.encode())
        # torch keeps a group's name and devices in a backend of C++; calls do not reach it
        keeper = FakeProcessGroup._create_internal(ring.place, ring.size)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, keeper)

    def getBackendName(self) -> str:
        return BACKEND

    # -- collectives ---------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any) -> LinkWork:
        steps = (all_reduce(self._ring, _flat(x), opts.reduceOp.op) for x in tensors)
        return self._collective("all_reduce", tensors, steps)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any) -> LinkWork:
        steps = (broadcast(self._ring, _flat(x), opts.rootRank) for x in tensors)
        return self._collective("broadcast", tensors, steps)

    def reduce(self, tensors: list[Tensor], opts: Any) -> LinkWork:
        steps = (reduce(self._ring, _flat(x), opts.rootRank, opts.reduceOp.op) for x in tensors)
        return self._collective("reduce", tensors, steps)

    def barrier(self, opts: Any) -> LinkWork:
        parts = torch.zeros(2, self._ring.size, 1, dtype=torch.uint8)
        return self._collective("barrier", [], [all_to_all(self._ring, *parts)])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> LinkWork:
        steps = (
            all_gather(self._ring, [*map(_flat, parts)], _flat(x)) for parts, x in zip(outputs, inputs, strict=True)
        )
        return self._collective("all_gather", [*chain(*outputs)], steps)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> LinkWork:
        return self.allgather([self._parts(whole) for whole in outputs], inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> LinkWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> LinkWork:
        pairs = zip(outputs, inputs, strict=True)
        steps = (reduce_scatter(self._ring, _flat(x), [*map(_flat, parts)], opts.reduceOp.op) for x, parts in pairs)
        return self._collective("reduce_scatter", outputs, steps)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> LinkWork:
        return self.reduce_scatter(outputs, [self._parts(whole) for whole in inputs], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> LinkWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> LinkWork:
        steps = all_to_all(self._ring, [*map(_flat, outputs)], [*map(_flat, inputs)])
        return self._collective("all_to_all", outputs, [steps])

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_rows: list[int], input_rows: list[int], opts: Any
    ) -> LinkWork:
        return self.alltoall(self._rows(output, output_rows), self._rows(input, input_rows), opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> LinkWork:
        steps = gather(self._ring, [_flat(x) for x in chain(*outputs)], _flat(inputs[0]), opts.rootRank)
        return self._collective("gather", [*chain(*outputs)], [steps])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> LinkWork:
        steps = scatter(self._ring, _flat(outputs[0]), [_flat(x) for x in chain(*inputs)], opts.rootRank)
        return self._collective("scatter", outputs, [steps])

    # names until torch 2.12
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    allgather_into_tensor_coalesced, alltoall_base = all_gather_single_coalesced, all_to_all_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _parts(self, whole: Tensor) -> list[Tensor]:
        """The equal parts of a tensor, one for each rank."""
        return [*_flat(whole).tensor_split(self._ring.size)]

    def _rows(self, whole: Tensor, rows: list[int]) -> list[Tensor]:
        """The parts of a tensor with so many rows each; equal ones if no numbers are there."""
        return [*(torch.split(whole, rows) if rows else whole.tensor_split(self._ring.size))]

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int) -> LinkWork:
        rank = self._ring.ranks[to]
        return self._start("send", tensors, _chained([send(rank, _flat(x)) for x in tensors]), tag, None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> LinkWork:
        return self._receive(tensors, (self._ring.ranks[source],), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> LinkWork:
        return self._receive(tensors, self._ring.ranks, tag)

    def _receive(self, tensors: list[Tensor], sources: tuple[int, ...], tag: int) -> LinkWork:
        steps = _chained([receive(sources, _flat(x)) for x in tensors])
        return self._start("receive", tensors, steps, tag, sources)

    # -- works ---------------------------------------------------------------------------------------------------------

    def _collective(self, name: str, results: list[Tensor], steps: Iterable[Steps]) -> LinkWork:
        return self._start(name, results, _chained([*steps]), COLLECTIVE, ())

    def _start(self, name: str, results: list[Tensor], steps: Steps, tag: int, lane: object) -> LinkWork:
        """Starts an operation. Those of a tag and a lane run one after another; without a lane all at the same time."""
        work = LinkWork(self._ring, results)
        lane = None if lane is None else (self._number, tag, lane)
        deadline = time.monotonic() + self._timeout_s
        work.operation = Operation(name, steps, Channel(self._number, tag), lane, deadline, work.finish)
        self._network.submit(work.operation)
        return work


def _flat(x: Tensor) -> Tensor:
    """The numbers of a tensor, without its history: autograd does not see that they change. Raises ValueError."""
    if not x.is_contiguous():
        raise ValueError("tensors must be contiguous")
    return x.data.view(-1)


def _chained(many: Iterable[Steps]) -> Steps:
    for steps in many:
        yield from steps


_network: EmulatedNetwork | None = None  # of the default group


def _create(options: Any, _: Any) -> LinkGroup:
    """torch's call for a new group; the first one is the default group."""
    global _network
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    if not options.global_ranks_in_group:
        if _network is not None:
            _network.close()
        speed = Speed.read(os.environ.get(VARIABLE, ""))
        _network = EmulatedNetwork(speed, options.store, options.group_rank, options.group_size)
    assert _network is not None
    return LinkGroup(_network, options.group_id, Ring(ranks, options.group_rank), options.timeout)


if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
