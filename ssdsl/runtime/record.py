"""Notes when each task of a step starts and ends, how long it waits for what others send, and how full memory gets."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .transfers import Leg, Message, Mover, Signal, Transfer, shape_of
from .world import World

PROBES = 5
WATCHED = 1  # the step whose memory is watched, which slows it


class Recorder:
    """A clock for the engine: one list of (task, start, end, waited) a step, in seconds of the machine's own clock."""

    def __init__(self, device: torch.device, world: World) -> None:
        self.device = device
        self.world = world
        self.steps: list[list[tuple[str, float, float, float]]] = []
        self.tensor_bytes = 0

    def now(self) -> float:
        """The time at which the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, name: str, start: float, waited: float = 0.0) -> None:
        """Notes that something that started then has ended now."""
        self.steps[-1].append((name, start, self.now(), waited))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Notes when what runs inside starts and ends."""
        start = self.now()
        yield
        self.add(name, start)

    @contextmanager
    def step(self, number: int, last: int) -> Iterator[None]:
        """A step; in one of them, unless it is the last, the most bytes that tensors take at once are noted."""
        self.world.transport.barrier()  # so that steps start together
        self.steps.append([])
        if number != WATCHED or number == last:
            yield
        elif self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            yield
            self.tensor_bytes = torch.cuda.max_memory_allocated()
        else:
            held = _tensor_bytes()
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
            ) as profile:
                yield
            self.tensor_bytes = held + _most_added(profile)


def _tensor_bytes() -> int:
    """What all tensors take now."""
    storages = (t.untyped_storage() for t in gc.get_objects() if isinstance(t, torch.Tensor))
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def _most_added(profile: Any) -> int:
    """The largest sum of allocations and releases from the start of a profile to some moment of it."""
    results = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in results if e.name() == "[memory]")
    level = most = 0
    for _, size in changes:
        level += size
        most = max(most, level)
    return most


def time_messages(messages: dict[int, Message], count: int, mover: Mover, device: torch.device) -> dict[str, float]:
    """Seconds of every transfer, alone, from its start on all ranks to its arrival here; called by all ranks alike.

    `count` is how many messages the program has.
    """
    found: dict[str, list[float]] = {}
    for number in range(count):
        message = messages[number]
        for gradient in (False, True):
            leg = message.backward if gradient and isinstance(message, Transfer) else message.forward
            for _ in range(PROBES):
                mover.world.transport.barrier()
                if isinstance(message, Signal) or leg is None:
                    continue
                time_s = _probe(message, leg, number, gradient, mover, device)
                if leg.gets:
                    found.setdefault(f"{number}.{'bwd' if gradient else 'fwd'}", []).append(time_s)
    return {name: min(times) for name, times in found.items()}


def _probe(transfer: Transfer, leg: Leg, number: int, gradient: bool, mover: Mover, device: torch.device) -> float:
    at = (0,) * len(transfer.time)
    value = None
    if leg.sends:
        factors = [n for axis in shape_of(leg.sends_shape, at, transfer) for n in axis]
        value = torch.zeros(factors, dtype=transfer.dtype, device=device)
    start = time.perf_counter()
    mover.start(transfer, leg, value, number, at, gradient=gradient)
    mover.wait(number, at, gradient=gradient)
    mover.finish()
    return time.perf_counter() - start
