"""The report of a simulation: its figures, and the timeline from which views are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ssdsl.ir.program import Kernels
from ssdsl.record import Record
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.profile.partly_profiled import Coverage
from ssdsl.simulate.timeline import Timeline


class DeviceReport(Record):
    """The figures of one row of the timeline: devices that do the same.

    `span_s` is the time from its first task's start to its last one's end. A step is the sum of `compute_s` (of tasks,
    without collectives that they wait for), `optimizer_s` (of the update), `exposed_s` (of communication, with nothing
    else to run) and of the time that it is idle, as it waits for other devices. `communication_s` is the time in which
    its links carry something for it, hidden or exposed. `peak_parts` are the bytes of each part of its memory at the
    peak. `host_bytes` are what it has in the memory of its host, of a share of `host_capacity_bytes`.
    """

    name: str
    ranks: tuple[int, ...]
    device: str
    span_s: float
    compute_s: float
    optimizer_s: float
    communication_s: float
    exposed_parts: tuple[tuple[ExposedPart, float], ...]
    idle_share: float  # of the step
    peak_bytes: int
    peak_parts: tuple[tuple[str, int], ...]
    capacity_bytes: int | None
    host_bytes: int = 0
    host_capacity_bytes: int | None = None

    @property
    def exposed_s(self) -> float:
        """The seconds in which it waits for communication, with nothing else to run."""
        return sum(time_s for _, time_s in self.exposed_parts)

    @property
    def busy_s(self) -> float:
        """The seconds in which it computes."""
        return self.compute_s + self.optimizer_s

    @property
    def capacity_share(self) -> float | None:
        """The peak of its memory over its capacity; None if the capacity is not known."""
        return self.peak_bytes / self.capacity_bytes if self.capacity_bytes else None

    @property
    def over_bytes(self) -> int:
        """The bytes by which its peak exceeds its capacity; 0 if it fits."""
        return max(0, self.peak_bytes - self.capacity_bytes) if self.capacity_bytes else 0


class Traffic(Record):
    """The communication of all devices together in a step, of one kind, over one level of links."""

    level: str
    kind: str
    calls: int
    size_bytes: int


@dataclass(frozen=True)
class Report:
    """One simulated step of a plan; its `timeline` is drawn at the first look-up.

    `bubble` is Zero Bubble's rate (Qi et al. 2023): (cost - busy) / cost, where cost is the largest `span_s` and busy
    the longest time within it in which a device computes, or waits for collectives. `model_flops` counts the products
    of a step once, without recomputed or repeated work (`model/products.py`); `mfu` is the time that they take at the
    devices' peak, as a share of the step. `size` is the number of devices that the plan takes, those that run nothing
    among them.
    `kernels` says how operators run, `price` what a step costs where that is known, in a `currency`. `coverage` says
    what of it was measured, if a profile had some of its times.
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
    size: int
    kernels: Kernels
    draw: Callable[[], Timeline] = field(compare=False, repr=False)
    price: float | None = None
    currency: str = ""
    coverage: Coverage | None = None

    @property
    def flops_per_s(self) -> float | None:
        """The rate at which a device computes the model's operations, the mean of all devices; None if a step takes no
        time."""
        return self.model_flops / (self.step_s * self.size) if self.step_s else None

    @property
    def communication_s(self) -> float:
        """The communication of a device, hidden or exposed: the mean of those that run something."""
        return self._mean(lambda d: d.communication_s)

    @property
    def exposed_s(self) -> float:
        """The exposed communication of a device: the mean of those that run something."""
        return self._mean(lambda d: d.exposed_s)

    @property
    def exposed_share(self) -> float:
        """The exposed communication of a device as a share of the step."""
        return self.exposed_s / self.step_s if self.step_s else 0.0

    def _mean(self, of: Callable[[DeviceReport], float]) -> float:
        ranks = sum(len(d.ranks) for d in self.devices)
        return sum(of(d) * len(d.ranks) for d in self.devices) / ranks if ranks else 0.0

    @property
    def peak_bytes(self) -> int:
        """The largest peak of a device."""
        return max((d.peak_bytes for d in self.devices), default=0)

    @property
    def over_bytes(self) -> int:
        """The most bytes by which a device's peak exceeds its capacity."""
        return max((d.over_bytes for d in self.devices), default=0)

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline of the step: what each device does, and when."""
        return self.draw()
