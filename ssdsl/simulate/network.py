"""The time and the bytes of communication: alpha-beta on the links that groups of ranks span."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ssdsl.cluster.cluster import Cluster
from ssdsl.lower.cuts import LINEAR
from ssdsl.lower.layout import Submesh
from ssdsl.lower.reshard import Step
from ssdsl.lower.schedule import Block, Conversion, Role, Schedule, Transfer, base
from ssdsl.lower.units import WeightUnit, units_of
from ssdsl.model.graph import ITEMSIZE, Graph, Operator, Origin
from ssdsl.model.ops.registry import row
from ssdsl.model.saved import saved
from ssdsl.model.storage import Storage
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import Cost, Message
from ssdsl.simulate.groups import groups_along, pairs
from ssdsl.simulate.local import local_sizes, numel, payloads


@dataclass
class Network:
    """What the devices of a schedule tell each other on a cluster. `weights`: the values that follow from weights
    alone."""

    schedule: Schedule
    cluster: Cluster
    places: dict[str, Storage]
    weights: frozenset[str]
    _messages: dict[tuple[int, Phase], tuple[Cost, ...]] = field(default_factory=dict)
    _groups: dict[tuple[Submesh, tuple[str, ...]], list[tuple[int, ...]]] = field(default_factory=dict)
    _units: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[WeightUnit, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operators = {o.name: o for o in self.schedule.graph.operators}

    def collectives(self, block: Block, phase: Phase, role: Role) -> tuple[Cost, ...]:
        """What the devices of a role communicate in a task of a block."""
        if (block.number, phase) not in self._messages:
            self._messages[block.number, phase] = tuple(self._of_conversions(block, phase))
        return (*self._messages[block.number, phase], *self._of_units(block, phase, role))

    def _of_conversions(self, block: Block, phase: Phase) -> Iterator[Cost]:
        readers: dict[str, tuple[Operator, int]] = {}
        for name in block.operators:
            for k, read in enumerate(block.reads[name]):
                readers.setdefault(read, (self.operators[name], k))
        for conversion in block.conversions:
            itemsize = self.schedule.graph.values[base(conversion.value)].itemsize
            elements, at_end = self._elements(conversion, readers)
            steps: list[tuple[Step, int]] = []
            if phase is Phase.FORWARD or self._is_again(block, conversion, phase):
                steps += payloads(conversion.forward, block.submesh, elements, at_end=at_end)
            if phase is not Phase.FORWARD and self._is_backward_in(conversion, phase):
                steps += payloads(conversion.backward, block.submesh, elements, at_end=False)
            for step, n in steps:
                yield self.collective(step.kind.value, block.submesh, step.axes, n * itemsize)
        yield from self._of_kernels(block, phase)

    def _is_again(self, block: Block, conversion: Conversion, phase: Phase) -> bool:
        """Whether all who read a conversion's result compute again in this phase, so that it is communicated again."""
        if phase not in (Phase.BACKWARD, Phase.DGRAD) or not block.units:
            return False
        readers = [name for name, reads in block.reads.items() if conversion.result in reads]
        return bool(readers) and all(name in block.units for name in readers)

    def _is_backward_in(self, conversion: Conversion, phase: Phase) -> bool:
        """Whether a conversion's gradient belongs to this phase of backward: that of a weight to the weights' half."""
        is_weight = base(conversion.value) in self.weights
        return phase is Phase.BACKWARD or is_weight is (phase is Phase.WGRAD)

    def _elements(self, conversion: Conversion, readers: dict[str, tuple[Operator, int]]) -> tuple[int, bool]:
        """The size of a local tensor, and whether it is the one behind the conversion's steps."""
        if conversion.result in readers:
            operator, k = readers[conversion.result]
            cuts = self.schedule.cuts[operator.name]
            taken = math.prod(take.cut.count for take in conversion.takes)
            return numel(operator.inputs[k], local_sizes(operator, cuts)) * taken, True
        value = base(conversion.value)
        producer = next(o for o in self.operators.values() if any(x.value == value for x in o.outputs))
        output = next(x for x in producer.outputs if x.value == value)
        return numel(output, local_sizes(producer, self.schedule.cuts[producer.name])), False

    def _of_kernels(self, block: Block, phase: Phase) -> Iterator[Cost]:
        for name in block.operators:
            operator = self.operators[name]
            if (kernel := row(operator).kernel) is None:
                continue
            cuts = self.schedule.cuts[name]
            over = [c for c in cuts if c.dim != LINEAR and c.in_space and operator.dims[c.dim].combined]
            backward = () if phase is Phase.WGRAD else kernel.backward
            collectives = kernel.forward if phase is Phase.FORWARD else backward
            if over:
                sizes, given = local_sizes(operator, cuts), operator.inputs[0]
                dims = [d for axis in given.axes for d in axis]
                kept = [d for d in dims if not operator.dims[d].combined and not operator.dims[d].fixed]
                size = math.prod(sizes[d] for d in kept) * self.schedule.graph.values[given.value].itemsize
                for c in collectives:
                    yield self.collective(c.kind, block.submesh, tuple(x.index for x in over), c.numbers * size)

    def collective(self, kind: str, submesh: Submesh, axes: tuple[str, ...], size_bytes: int) -> Cost:
        """A collective in the slowest of the groups along these axes."""
        if (submesh, axes) not in self._groups:
            self._groups[submesh, axes] = groups_along(submesh, axes)
        groups = self._groups[submesh, axes]
        time, group = max((self.cluster.collective_time(kind, size_bytes, g), g) for g in groups)
        message = Message(kind, self.cluster.level(group), 1, size_bytes, len(group))
        return Cost(0.0, time, (message,) if len(group) > 1 else ())

    # -- state that is cut (ZeRO) ------------------------------------------------------------------------------------

    def _of_units(self, block: Block, phase: Phase, role: Role) -> Iterator[Cost]:
        used = set(block.weights)
        for unit in self.units_of(role):
            if unit.homes[0].submesh != block.submesh or not any(h.weight in used for h in unit.homes):
                continue
            size = unit_bytes(unit, self.schedule.graph)
            if unit.cut == "weights" and (phase is Phase.FORWARD or self._is_read_again(block, phase, unit)):
                yield self.collective("all_gather", block.submesh, unit.over, size)
            if unit.cut in ("weights", "grads") and phase in (Phase.BACKWARD, Phase.WGRAD):
                yield from self.reduced(unit, size)

    def _is_read_again(self, block: Block, phase: Phase, unit: WeightUnit) -> bool:
        """Whether backward reads a unit's weights: autograd keeps them for it, or it computes with them again."""
        if phase is Phase.WGRAD:
            return False
        weights = {h.weight for h in unit.homes}
        for operator in (self.operators[name] for name in block.operators):
            read = {o.value for o in operator.inputs if self.places[o.value].root in weights}
            again = operator.name in block.units
            if read and (again or not read.isdisjoint(saved(operator, self.schedule.graph, self.places).inputs)):
                return True
        return False

    def reduced(self, unit: WeightUnit, size: int) -> Iterator[Cost]:
        """Gradients that are partial sums, on their way to those who own a part of them."""
        submesh = unit.homes[0].submesh
        rest = tuple(a for a in unit.partial if a not in unit.over)
        if rest:
            yield self.collective("all_reduce", submesh, rest, size)
        if all(a in unit.partial for a in unit.over):
            yield self.collective("reduce_scatter", submesh, unit.over, size)

    def units_of(self, role: Role) -> tuple[WeightUnit, ...]:
        """The units of a role's weights."""
        key = role.mesh, role.fixed
        if key not in self._units:
            self._units[key] = units_of(self.schedule, role)
        return self._units[key]

    # -- between devices, and of tied weights -------------------------------------------------------------------------

    def transfer(self, transfer: Transfer, phase: Phase) -> Cost:
        """The slowest device's share: what it receives from each of the others."""
        move = transfer.forward if phase is Phase.FORWARD else transfer.backward
        assert move is not None
        ends = transfer.ends(phase)
        itemsize = ITEMSIZE.get(transfer.dtype, 4)
        received: dict[int, float] = {}
        totals: dict[int, int] = {}
        levels: dict[int, str] = {}
        for source, target, elements in pairs(move, *ends):
            time = self.cluster.point_to_point_time(elements * itemsize, source, target)
            received[target] = received.get(target, 0.0) + time
            if source != target:
                totals[target] = totals.get(target, 0) + elements * itemsize
                levels[target] = self.cluster.level((source, target))
        slowest = max(received, key=lambda r: received[r])
        size = totals.get(slowest, 0)
        message = Message("send", levels.get(slowest, ""), 1, size, ends[1].size)
        return Cost(0.0, received[slowest], (message,) if size else ())

    def tie(self, unit: WeightUnit, size: int) -> Cost:
        """A weight on several submeshes: its gradients are summed over the devices that hold the same part of it."""
        homes = [h.submesh for h in self.schedule.homes if h.weight == unit.homes[0].weight]
        ranks = tuple(sorted(s.ranks()[0] for s in homes))
        time = self.cluster.collective_time("all_reduce", size, ranks)
        return Cost(0.0, time, (Message("all_reduce", self.cluster.level(ranks), 1, size, len(ranks)),))


def unit_bytes(unit: WeightUnit, graph: Graph) -> int:
    """The local bytes of a unit's weights, gathered."""
    return sum(
        h.shape.local(h.layout.digits()).numel * graph.values[h.weight].itemsize
        for h in unit.homes
        if graph.values[h.weight].origin is Origin.WEIGHT
    )
