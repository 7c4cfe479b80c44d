"""Notes when each task of a step starts and ends, and how long it waits for what others send."""

import time
from typing import Any

import torch
import torch.distributed as dist

from .transfers import Leg, Mover, Transfer, shape_of

PROBES = 5


class Recorder:
    """A clock for the engine: one list of (task, start, end, waited) a step, in seconds of the machine's own clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[list[tuple[str, float, float, float]]] = []

    def now(self) -> float:
        """The time at which the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def start_step(self) -> None:
        self.steps.append([])

    def add(self, name: str, start: float, waited: float = 0.0) -> None:
        """Notes that something that started then has ended now."""
        self.steps[-1].append((name, start, self.now(), waited))


def time_transfers(transfers: dict[int, Transfer], count: int, mover: Mover, device: torch.device) -> dict[str, float]:
    """Seconds of every transfer, alone, from its start on all ranks to its arrival here; called by all ranks alike.

    `count` is how many transfers the program has.
    """
    found: dict[str, list[float]] = {}
    for number in range(count):
        transfer = transfers.get(number)
        for way, name in enumerate(("fwd", "bwd")):
            leg = None if transfer is None else (transfer.forward, transfer.backward)[way]
            for _ in range(PROBES):
                time_s = _probe(transfer, leg, number * 2 + way, mover, device)
                if time_s is not None:
                    found.setdefault(f"{number}.{name}", []).append(time_s)
    return {name: min(times) for name, times in found.items()}


def _probe(transfer: Transfer | None, leg: Leg | None, tag: int, mover: Mover, device: torch.device) -> float | None:
    dist.barrier()
    if transfer is None or leg is None or not transfer.source_slot:
        return None
    at = (0,) * len(transfer.time)
    key = ("probe", at)
    store: dict[Any, torch.Tensor] = {}
    value = None
    if leg.sends:
        factors = [n for axis in shape_of(leg.sends_shape, at, transfer) for n in axis]
        value = torch.zeros(factors, dtype=transfer.dtype, device=device)
    start = time.perf_counter()
    mover.move(leg, value, key, tag, at, transfer)
    mover.arrive(key, store, gradient=bool(tag % 2))
    mover.finish()
    return time.perf_counter() - start if leg.gets else None
