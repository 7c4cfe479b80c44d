"""Records when each task of a step starts and ends, how long it waits and computes, and the peak of memory."""

import ctypes
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from ..ranks.transfers import Leg, Message, Mover, ValueTransfer
from ..ranks.world import Group, World
from .operator_clock import OperatorClock

PROBES = 5  # calls of each communication that is timed alone
MEASURED = 1  # the step whose memory is measured, which slows it
CLOCKED = 3  # every second step from here on is timed by operator, which slows it a little


class Recorder:
    """Records a list of (task, start, end, waited, computed) for each step, in seconds of the machine's monotonic
    clock; `computed` is the processor time of this thread. `tensor_bytes` is the peak of memory, once it is measured.

    `clock` times single operators, on devices that run synchronously; `clocked` are the steps in which it does. `file`
    is the file of the rank's role.
    """

    def __init__(self, device: torch.device, world: World, file: str = "") -> None:
        self.device = device
        self.world = world
        self.clock = OperatorClock(file, world) if device.type == "cpu" else None
        self.clocked: list[int] = []
        self.steps: list[list[tuple[str, float, float, float, float]]] = []
        self.tensor_bytes = 0

    def now(self) -> float:
        """The time, once the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def span(self, name: str, waited: float = 0.0) -> Iterator[None]:
        """A context whose start and end are recorded; `waited` seconds before it belong to it."""
        start, computed = self.now(), time.thread_time()
        yield
        self.steps[-1].append((name, start - waited, self.now(), waited, time.thread_time() - computed))

    @contextmanager
    def step(self, number: int, last: int) -> Iterator[None]:
        """A context for a step. One step, unless it is the last, records the most bytes of tensors that exist at
        once."""
        self.world.transport.barrier()  # so that all ranks start the step together
        self.steps.append([])
        if self.clock is not None and number >= CLOCKED and (number - CLOCKED) % 2 == 0:
            self.clocked.append(len(self.steps) - 1)
            with self.clock.step():
                yield
        elif number != MEASURED or number == last:
            yield
        else:
            with AllocatedMemory(self.device) as memory:
                yield
            self.tensor_bytes = memory.peak_bytes


KINDS = ("send", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange")
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24, 1 << 25, 1 << 26)  # bytes of test messages
Timed = tuple[str, int, int, float]  # a kind of communication, the number of ranks, bytes, seconds


def time_network(world: World) -> list[Timed]:
    """Seconds of communication of each kind and several sizes, among the first 2, 4, ... ranks; called by all ranks
    alike.

    Sizes are as `World.count` has them. Ranks do nothing else meanwhile.
    """
    found = []
    sizes = {2**k for k in range(1, 1 + world.transport.size.bit_length())} | {world.transport.size}
    for count in sorted(n for n in sizes if 2 <= n <= world.transport.size):
        group = world.new_group(f"first {count}", list(range(count)))
        for kind, size in itertools.product(KINDS, SIZES):
            world.transport.barrier()
            if group is not None and (kind != "send" or count == 2):
                x = torch.zeros(size // 4 // count * count)  # in equal parts
                with world.uncounted():
                    found.append((kind, count, x.nbytes, _time_of(kind, group, x)))
    return found


def _time_of(kind: str, group: Group, x: torch.Tensor) -> float:
    """The median of several calls in a row, in seconds. A "send" goes there and back, and counts half."""
    call = _call_of(kind, group, x)
    call()  # not timed: the first call may set up more
    found = []
    for _ in range(PROBES):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found) / (2 if kind == "send" else 1)


def _call_of(kind: str, group: Group, x: torch.Tensor) -> Callable[[], object]:
    """A function without arguments that communicates `x` once; for "send" there and back. It allocates nothing, because
    the first touch of memory takes longer."""
    share, others = x[: x.numel() // group.size].clone(), [k for k in range(group.size) if k != group.index]
    match kind:
        case "send":
            end = [(group.ranks[1 - group.index], x)]

            def there_and_back() -> None:
                for sender in (0, 1):
                    ends = ([], end) if sender == group.index else (end, [])
                    group.world.transport.start_exchange(*ends, group.process_group).wait()

            return there_and_back
        case "all_reduce":
            return lambda: group.all_reduce(x)
        case "all_gather":
            return lambda: group.all_gather(x, share)
        case "reduce_scatter":
            return lambda: group.reduce_scatter(share, x)
        case "all_to_all":
            found = torch.zeros_like(x)
            return lambda: group.all_to_all(found, x)
    part = x[: x.numel() // len(others)]
    into = {k: torch.zeros_like(part) for k in others}
    return lambda: group.exchange(into, dict.fromkeys(others, part))


def time_messages(messages: dict[int, Message], count: int, mover: Mover) -> dict[str, float]:
    """Seconds of each transfer alone, from its start on all ranks to its arrival here; called by all ranks alike.

    `count` is the number of messages in the program. A rank without work in the plan has no end of any.
    """
    found: dict[str, list[float]] = {}
    for number in range(count):
        message = messages.get(number)
        for gradient in (False, True):
            for _ in range(PROBES):
                mover.world.transport.barrier()
                if not isinstance(message, ValueTransfer):
                    continue
                if (leg := message.backward if gradient else message.forward) is None:
                    continue
                time_s = _probe(message, leg, number, gradient, mover)
                if leg.gets:
                    found.setdefault(f"{number}.{'bwd' if gradient else 'fwd'}", []).append(time_s)
    return {name: min(times) for name, times in found.items()}


def _probe(transfer: ValueTransfer, leg: Leg, number: int, gradient: bool, mover: Mover) -> float:
    """The seconds of one transfer of zeros, from its start to its arrival, at this rank's end of it."""
    at = (0,) * len(transfer.time)
    value = mover.zeros(transfer, leg, at) if leg.sends else None
    start = time.perf_counter()
    mover.start(transfer, leg, value, number, at, gradient=gradient)
    mover.wait(number, at, gradient=gradient)
    mover.finish()
    if mover.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# -- memory ------------------------------------------------------------------------------------------------------------


def count_allocations() -> None:
    """Makes the allocator of CPUs count the bytes of all threads from now on, and not only while a profile is recorded.
    Called before the tensors that are to count; torch warns when one is freed that it has not counted."""
    _counts().value = True


def _counts() -> ctypes.c_bool:
    """Torch's flag for that; one that says nothing where torch is built without, and then frees of other threads are
    not counted."""
    try:
        return ctypes.c_bool.in_dll(ctypes.CDLL(torch._C.__file__), "FLAGS_caffe2_report_cpu_memory_usage")
    except (OSError, ValueError):
        return ctypes.c_bool()


class AllocatedMemory:
    """A context that records what torch allocates. `begun_bytes` is the memory of tensors at its start, and
    `peak_bytes` the most until its end, in all threads: one of gloo may be the last to let go of a tensor. Buffers
    inside of compiled kernels and workspaces of operators count, what is mapped from a file does not. On a CPU, both
    are without what was made before `count_allocations`.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_gpu = device.type == "cuda"
        self.begun_bytes = self.peak_bytes = 0
        self._profile: Any = profile(profile_memory=True)
        self._counted = _counts().value

    def __enter__(self) -> "AllocatedMemory":
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()
            self.begun_bytes = torch.cuda.memory_allocated()
            return self
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch prints two lines about each profile
        count_allocations()
        self._profile.__enter__()
        torch.empty(1)  # an event with the bytes at the start
        return self

    def __exit__(self, *error: Any) -> None:
        if self.is_gpu:
            self.peak_bytes = torch.cuda.max_memory_allocated()
            return
        self._profile.__exit__(*error)
        _counts().value = self._counted
        totals = list(_totals(self._profile.kineto_results.experimental_event_tree()))
        self.begun_bytes, self.peak_bytes = totals[1], max(totals)  # `empty` is freed again


def _totals(events: Iterable[Any]) -> Iterator[int]:
    """Yields the bytes that are allocated after each event of the allocator, in order."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.extra_fields.total_allocated
        yield from _totals(event.children)
