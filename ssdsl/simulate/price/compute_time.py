"""The time that a device computes: the kernels of a function, one after another.

A kernel takes the longer of its arithmetic and its memory traffic: the roofline of Williams, Waterman and Patterson
(2009), with the fractions of the peaks that devices reach. The backward of a contraction is one contraction for each
operand with a gradient. The backward of other operators is a pass over their saved tensors and the gradients that they
read and write. `fusion.py` finds the kernels, `matmul.py` the time of a matrix product.
"""

import math
from dataclasses import dataclass, field

from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, OpPart
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.collectives import ProgramIndex
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.launch_time import LaunchTime


@dataclass(slots=True)
class ComputeTimes:
    """Seconds of one function's phases on one kind of device. `recompute` is the part of forward that backward
    repeats."""

    forward: float = 0.0
    recompute: float = 0.0
    dgrad: float = 0.0
    wgrad: float = 0.0

    def add(self, other: "ComputeTimes") -> None:
        """Adds the times of another section or kernel."""
        self.forward += other.forward
        self.recompute += other.recompute
        self.dgrad += other.dgrad
        self.wgrad += other.wgrad

    def of(self, phase: Phase) -> float:
        """The seconds of a phase; a backward includes what it recomputes."""
        return {
            Phase.FORWARD: self.forward,
            Phase.BACKWARD: self.recompute + self.dgrad + self.wgrad,
            Phase.DGRAD: self.recompute + self.dgrad,
            Phase.WGRAD: self.wgrad,
        }[phase]


@dataclass(slots=True)
class Computing:
    """The compute times of a program's functions."""

    facts: ProgramIndex
    fusion: Fusion
    _found: dict[tuple[int, Device], ComputeTimes] = field(default_factory=dict)
    _of_kind: dict[tuple[int | None, Device], ComputeTimes] = field(default_factory=dict)  # by a section's kind

    def times(self, function: Function, device: Device) -> ComputeTimes:
        """The times of a function's phases on a device, for one task."""
        function = self.facts.like(function)
        key = function.number, device
        if key not in self._found:
            times = self._found[key] = ComputeTimes()
            for number in range(len(function.sections)):
                times.add(self.of_section(function, number, device))
            times.wgrad += self._accumulating(function, device)
        return self._found[key]

    def of_section(self, function: Function, number: int, device: Device) -> ComputeTimes:
        """The times of one section of a function, by its number."""
        section = function.sections[number]
        key = section.kind, device
        if section.kind is None or key not in self._of_kind:
            times = self._of_kind[key] = ComputeTimes()
            for launch in self.fusion.launches(function)[number]:
                self._add(times, LaunchTime(self.facts, function, launch, device), section.recompute)
        return self._of_kind[key]

    def of_one(self, function: Function, op: OpPart, device: Device) -> ComputeTimes:
        """The times of the kernel that an operator is in."""
        (section,) = (s for s in function.sections if op in s.body)
        times, launch = ComputeTimes(), self.fusion.launch_of(function, op)
        self._add(times, LaunchTime(self.facts, function, launch, device), section.recompute)
        return times

    def _add(self, times: ComputeTimes, launch: LaunchTime, recompute: bool) -> None:
        times.forward += launch.forward(keeps=launch.learns and not recompute)
        if not launch.learns:
            return
        if recompute:
            times.recompute += launch.forward(keeps=True)
        for name, seconds in launch.backward():
            if name.value in self.facts.weights:
                times.wgrad += seconds
            else:
                times.dgrad += seconds

    def _accumulating(self, function: Function, device: Device) -> float:
        """The seconds in which the gradients of weights are added to those of the parts before; 0 with one part."""
        if math.prod(t.parts for t in function.time) == 1:
            return 0.0
        state, learned = self.facts.state, (p.var for p in function.parameters if p.var.gradient is not None)
        traffic = sum(v.elements * state.accumulation_traffic(v.dtype, fuses=self.facts.fuses) for v in learned)
        return traffic / device.achievable_bandwidth()
