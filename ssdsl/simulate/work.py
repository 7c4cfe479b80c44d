"""The time that a device computes: an operator takes as long as the longer of its arithmetic and its memory traffic.

The roofline is Williams, Waterman and Patterson's (2009), with the fractions of the peaks that devices reach. Backward
of a contraction is one contraction of the same size for each operand that learns; of other operators, another pass
over what they read and write.
"""

from dataclasses import dataclass, field

from ssdsl.cluster.device import Device
from ssdsl.lower.schedule import Block, Schedule
from ssdsl.model.graph import Operator
from ssdsl.model.ops.registry import row
from ssdsl.model.storage import Storage, aliases
from ssdsl.simulate.local import local_sizes, numel, parts


@dataclass(slots=True)
class Work:
    """Seconds of one block's phases on one kind of device."""

    forward: float = 0.0
    again: float = 0.0  # the part of forward that backward repeats
    dgrad: float = 0.0
    wgrad: float = 0.0


@dataclass
class Computing:
    """Seconds of a schedule's blocks. `places` is what `storages` found, `weights` the values that follow from weights
    alone, `sharing` how many ranks share a device."""

    schedule: Schedule
    places: dict[str, Storage]
    weights: frozenset[str]
    sharing: float
    _found: dict[tuple[int, Device], Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operators = {o.name: o for o in self.schedule.graph.operators}

    def block(self, block: Block, device: Device) -> Work:
        """A block's phases on a device, in one task."""
        key = block.number, device
        if key not in self._found:
            work = self._found[key] = Work()
            for name in block.operators:
                self._add(work, self.operators[name], device, name in block.units)
        return self._found[key]

    def _add(self, work: Work, operator: Operator, device: Device, again: bool) -> None:
        values, cuts = self.schedule.graph.values, self.schedule.cuts[operator.name]
        views = aliases(operator, self.places)
        if all(o.value in views for o in operator.outputs):
            return
        sizes = local_sizes(operator, cuts)
        inputs = [(o, numel(o, sizes) * values[o.value].itemsize) for o in operator.inputs]
        outputs = [numel(o, sizes) * values[o.value].itemsize for o in operator.outputs]
        rate = device.achievable_flops(values[operator.outputs[0].value].dtype) / self.sharing
        bandwidth = device.achievable_bandwidth() / self.sharing
        flops = operator.flops / parts(cuts)

        def seconds(flops: float, traffic: int) -> float:
            return max(flops / rate, traffic / bandwidth, device.launch_s * self.sharing)

        whole = sum(n for _, n in inputs) + sum(outputs)
        work.forward += seconds(flops, whole)
        if not any(values[o.value].differentiable for o in operator.outputs):
            return
        if again:
            work.again += seconds(flops, whole)
        contracts, factor = row(operator).contraction, row(operator).backward_factor
        learning = [(o, n) for o, n in inputs if values[o.value].differentiable]
        if contracts:  # a bias's sum is small beside the products; attention's third operand is in its factor
            learning = [(o, n) for o, n in learning if not o.once][:2]
        for operand, size in learning:
            is_weight = operand.value in self.weights
            time = seconds(flops * factor, whole) if contracts else seconds(0, sum(outputs) + 2 * size)
            if is_weight:
                work.wgrad += time
            else:
                work.dgrad += time
