"""What a simulation found, in figures; the timeline beside them is what the pictures are drawn from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ssdsl.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One row of the timeline: devices that do the same.

    `span_s` is the time from its first task's start to its last one's end; `compute_s` and `communication_s` are spent
    in it (collectives that a task waits for are communication, what travels in the background is not). `reduce_s` and
    `optimizer_s` come behind it: communication that completes gradients, and what follows.
    `peak_parts` is what its memory is made of when it is fullest, in bytes.
    """

    name: str
    ranks: tuple[int, ...]
    device: str
    span_s: float
    compute_s: float
    communication_s: float
    reduce_s: float
    optimizer_s: float
    idle_share: float  # of the step
    peak_bytes: int
    peak_parts: tuple[tuple[str, int], ...]
    capacity_bytes: int | None

    @property
    def capacity_share(self) -> float | None:
        """How full the device is at its fullest."""
        return self.peak_bytes / self.capacity_bytes if self.capacity_bytes else None

    @property
    def over_bytes(self) -> int:
        """By how much it needs more than it has."""
        return max(0, self.peak_bytes - self.capacity_bytes) if self.capacity_bytes else 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all devices together give to a level of links in a step, by kind of communication."""

    level: str
    kind: str
    calls: int
    size_bytes: int


@dataclass(frozen=True)
class Report:
    """One simulated step of a plan; its `timeline` is drawn when it is asked for.

    `bubble` is Zero Bubble's rate (Qi et al. 2023): with cost the largest `span_s`, and busy the largest time that a
    device computes, (cost - busy) / cost. `model_flops` counts a step's forward and backward once, without what is
    recomputed or repeated; `mfu` is the share of the devices' peak that this makes.
    """

    title: str
    plan: str
    cluster: str
    devices: tuple[DeviceReport, ...]
    step_s: float
    bubble: float
    model_flops: int
    mfu: float | None
    traffic: tuple[Traffic, ...]
    draw: Callable[[], Timeline] = field(compare=False, repr=False)

    @property
    def peak_bytes(self) -> int:
        """Of the fullest device."""
        return max((d.peak_bytes for d in self.devices), default=0)

    @property
    def over_bytes(self) -> int:
        """By how much the device that lacks most has too little memory."""
        return max((d.over_bytes for d in self.devices), default=0)

    @cached_property
    def timeline(self) -> Timeline:
        """What each device does when."""
        return self.draw()
