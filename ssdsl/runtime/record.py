"""Notes when each task of a step starts and ends, how long it waits for what others send, and how full memory gets."""

import copy
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .clock import Clock
from .transfers import Leg, Message, Mover, Signal, Transfer, shape_of
from .world import Group, World

PROBES = 5
WATCHED = 1  # the step whose memory is watched, which slows it
CLOCKED = 3  # from this step on, every second one is timed operator by operator, which slows it a little


class Recorder:
    """A clock for the engine: one list of (task, start, end, waited) a step, in seconds of the machine's own clock.

    `clock` tells the operators apart, on devices that run what they are told at once; `clocked` are its steps. `file`
    is that of the rank's role.
    """

    def __init__(self, device: torch.device, world: World, file: str = "") -> None:
        self.device = device
        self.world = world
        self.clock = Clock(file, world) if device.type == "cpu" else None
        self.clocked: list[int] = []
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
        if self.clock is not None and number >= CLOCKED and (number - CLOCKED) % 2 == 0:
            self.clocked.append(len(self.steps) - 1)
            with self.clock.step():
                yield
        elif number != WATCHED or number == last:
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


Talk = tuple[str, tuple[int, ...], int, float]  # a collective, its ranks, its bytes, and the seconds it takes


def time_collectives(clock: Clock | None, world: World) -> list[Talk]:
    """Seconds of each collective that some rank has met while the clock ran, alone; called by all ranks alike."""
    met = clock.met if clock is not None else {}
    said = [json.loads(text) for text in world.control.all_gather(json.dumps([_words(c) for c in met]).encode())]
    found = []
    for words in sorted({(kind, tuple(ranks), size, dtype) for own in said for kind, ranks, size, dtype in own}):
        world.transport.barrier()
        for key, group in met.items():
            if _words(key) == [words[0], list(words[1]), *words[2:]]:
                found.append((words[0], words[1], words[2], _time_of(words[0], group, words[2], key[3])))
    return found


def _words(met: tuple[str, tuple[int, ...], int, torch.dtype]) -> list[Any]:
    kind, ranks, size, dtype = met
    return [kind, list(ranks), size, str(dtype)]


def _time_of(kind: str, group: Group, size: int, dtype: torch.dtype) -> float:
    """Seconds of a collective whose ranks do nothing else, of several in a row in the mean."""
    call, world = _call(kind, group, size, dtype), group.world
    before = copy.deepcopy(world.counts)
    call()
    start = time.perf_counter()
    for _ in range(PROBES):
        call()
    world.counts = before
    return (time.perf_counter() - start) / PROBES


def _call(kind: str, group: Group, size: int, dtype: torch.dtype) -> Callable[[], object]:
    elements = size // torch.empty(0, dtype=dtype).element_size()
    each = elements // group.size
    whole, part = torch.zeros(elements, dtype=dtype), torch.zeros(each, dtype=dtype)
    match kind:
        case "all_reduce":
            return lambda: group.all_reduce(whole)
        case "all_gather":
            return lambda: group.all_gather(whole, part)
        case "reduce_scatter":
            return lambda: group.reduce_scatter(part, whole)
        case "all_to_all":
            return lambda: group.all_to_all(torch.empty_like(whole), whole)
        case _:
            others = [k for k in range(group.size) if k != group.index]
            share = torch.zeros(elements // max(1, len(others)), dtype=dtype)
            return lambda: group.exchange({k: torch.empty_like(share) for k in others}, dict.fromkeys(others, share))


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
