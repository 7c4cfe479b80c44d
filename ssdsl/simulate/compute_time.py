"""The time that a device computes: an operator takes as long as the longer of its arithmetic and its memory traffic.

The roofline is Williams, Waterman and Patterson's (2009), with the fractions of the peaks that devices reach. Backward
of a contraction is one contraction of the same size for each operand that has a gradient; of other operators, another
pass over what they read and write.
"""

import math
from dataclasses import dataclass, field

from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, Op, Split
from ssdsl.ir.value import Axis
from ssdsl.lower.operators.operand_types import is_inner
from ssdsl.model.graph import Operator
from ssdsl.model.ops.registry import row
from ssdsl.model.storage import aliases
from ssdsl.model.window import Prefix
from ssdsl.plan.plan import Phase
from ssdsl.simulate.collectives import Facts, size_bytes


@dataclass(slots=True)
class ComputeTimes:
    """Seconds of one function's phases on one kind of device. `recompute` is the part of forward that backward
    repeats."""

    forward: float = 0.0
    recompute: float = 0.0
    dgrad: float = 0.0
    wgrad: float = 0.0

    def of(self, phase: Phase) -> float:
        return {
            Phase.FORWARD: self.forward,
            Phase.BACKWARD: self.recompute + self.dgrad + self.wgrad,
            Phase.DGRAD: self.recompute + self.dgrad,
            Phase.WGRAD: self.wgrad,
        }[phase]


@dataclass(slots=True)
class Computing:
    """Seconds of a program's functions. `sharing`: how many ranks share a device."""

    facts: Facts
    sharing: float
    _found: dict[tuple[int, Device], ComputeTimes] = field(default_factory=dict)

    def times(self, function: Function, device: Device) -> ComputeTimes:
        """A function's phases on a device, in one task."""
        key = function.number, device
        if key not in self._found:
            times = self._found[key] = ComputeTimes()
            for section in function.sections:
                for op in (i for i in section.body if isinstance(i, Op)):
                    self._add(times, function, op, device, section.recompute)
        return self._found[key]

    def of_one(self, function: Function, op: Op, device: Device) -> ComputeTimes:
        """The same of one operator."""
        (section,) = (s for s in function.sections if op in s.body)
        times = ComputeTimes()
        self._add(times, function, op, device, section.recompute)
        return times

    def _add(self, times: ComputeTimes, function: Function, op: Op, device: Device, recompute: bool) -> None:
        operator, variables = self.facts.operators[op.operator], self.facts.variables(function)
        views = aliases(operator, self.facts.places)
        if all(v.name.value in views for v in op.results):
            return
        inputs = [(variables[r], size_bytes(variables[r])) for r in op.reads]
        written = sum(size_bytes(v) for v in op.results)
        rate = device.achievable_flops(op.results[0].dtype) / self.sharing
        bandwidth = device.achievable_bandwidth() / self.sharing
        parts = math.prod(s.parts for s in op.splits if isinstance(s, Split))

        def seconds(flops: float, traffic: int) -> float:
            return max(flops / rate, traffic / bandwidth, device.launch_s * self.sharing)

        flops = operator.flops / parts * _slowest(operator, op)
        traffic = sum(n for _, n in inputs) + written
        times.forward += seconds(flops, traffic)
        if all(v.gradient is None for v in op.results):
            return
        if recompute:
            times.recompute += seconds(flops, traffic)
        contracts, factor = row(operator).contraction, row(operator).backward_factor
        learning = [(o.once, v, n) for o, (v, n) in zip(operator.inputs, inputs, strict=True) if v.gradient is not None]
        if contracts:  # a bias's sum is small beside the products; attention's third operand is in its factor
            learning = [x for x in learning if not x[0]][:2]
        for _, var, size in learning:
            time = seconds(flops * factor, traffic) if contracts else seconds(0, written + 2 * size)
            if var.name.value in self.facts.weights:
                times.wgrad += time
            else:
                times.dgrad += time


def _slowest(operator: Operator, op: Op) -> float:
    """How much more the device computes that has most, than the mean of all: queries of causal attention at the end of
    the sequence see more keys than those at its beginning."""
    most = 1.0
    for split in (s for s in op.splits if isinstance(s, Split) and isinstance(s.coordinate, Axis)):
        for number, dim in enumerate(operator.dims):
            if dim.window is None or not isinstance(dim.window.shape, Prefix) or is_inner(operator, split):
                continue
            size = dim.size
            if split.dim == dim.window.of:
                work = [sum((s + e + 1) * (e - s) for s, e in runs) for runs in split.regions(size)]
            elif split.dim == number:
                work = [sum((2 * size - s - e + 1) * (e - s) for s, e in runs) for runs in split.regions(size)]
            else:
                continue
            most = max(most, max(work) * len(work) / sum(work))
    return most
