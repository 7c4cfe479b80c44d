"""What a plan costs at least, found from its text and the model alone: a small part of the time of a simulation.

A device computes its parts of all sums of products at the peak of the fastest device, once forward and once for each
factor that has a gradient, and does nothing else. It does not begin before one micro-batch has come through the
operators before its own, and is not done before one has gone back through them: so the bubble of a pipeline, in
whatever order its tasks run, is in the bound. Its memory has its parts of the weights, of their gradients and of what
the optimizer keeps of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from math import inf, prod
from typing import NamedTuple, TypeVar

from ssdsl.cluster.cluster import Cluster
from ssdsl.model.graph import ITEMSIZE, Graph, Operator, Origin, Stage
from ssdsl.plan.plan import Index, OpPlan, Placement, Plan
from ssdsl.plan.plan import State as Kept
from ssdsl.simulate.launch_time import causal_share
from ssdsl.simulate.state import State

T = TypeVar("T")


class _Part(NamedTuple):
    """One part of an operator: seconds of its forward and its backward, how many run one after another, and whether it
    computes anything that counts."""

    forward: float
    backward: float
    times: int
    counts: bool


class _Before(NamedTuple):
    """The operators whose values an operator reads, and those that its backward gives a gradient, by their numbers
    among those that a plan places."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


class _Use(NamedTuple):
    """An operator, by its signature too, reads a weight as an operand."""

    weight: str
    operator: Operator
    signature: int
    operand: int


@dataclass(slots=True)
class _Work:
    """What the devices of one place compute, how soon they can begin, and what follows their last backward."""

    seconds: float = 0.0
    head: float = inf
    tail: float = inf

    def add(self, other: "_Work") -> None:
        """The same devices do this as well."""
        self.seconds += other.seconds
        self.head, self.tail = min(self.head, other.head), min(self.tail, other.tail)


@dataclass(slots=True)
class Bounds:
    """Of the plans for a model on a cluster."""

    graph: Graph
    cluster: Cluster
    state: State
    _order: list[tuple[Operator, int, _Before]] = field(default_factory=list)
    _uses: list[_Use] = field(default_factory=list)
    _kept: dict[str, tuple[tuple[Kept, int], ...]] = field(default_factory=dict)  # bytes of a weight's state
    _seconds: dict[int, tuple[float, float]] = field(default_factory=dict)  # of whole operators, by signature

    def step_s(self, plan: Plan, halved: bool) -> float:
        """Seconds of a step, at least; `halved` where orders tell the halves of a backward apart, of which the second
        may come last."""
        found = self._by_place(plan)
        longest = 0.0
        for place in found:
            work = _Work()
            for own in _covering(place, found):
                work.add(own)
            if work.seconds:
                longest = max(longest, work.head + work.seconds + (0.0 if halved else work.tail))
        return longest * self.cluster.sharing(plan.devices)

    def _by_place(self, plan: Plan) -> dict[Placement, _Work]:
        operators = self._operators()
        records = [*map(plan.operators.__getitem__, (op.name for op, _, _ in operators))]
        works: dict[int, _Work] = {}  # by the records of operators, which share those of a place
        found: dict[Placement, _Work] = {}
        shares: dict[int, tuple[float, int]] = {}
        for record in {id(r): r for r in records}.values():
            works[id(record)] = found.setdefault(record.home, _Work())
            shares[id(record)] = _share_of(plan, record)
        parts: dict[tuple[int, int], _Part] = {}
        ends: list[float] = []  # of one micro-batch's forward, from the step's start
        back: list[float] = []  # of its backward, to the end of the last one that follows
        for (op, signature, before), record in zip(operators, records, strict=True):
            if (part := parts.get(key := (id(record), signature))) is None:
                part = parts[key] = self._part(op, *shares[id(record)])
            head = tail = 0.0
            for number in before.forward:
                if ends[number] > head:
                    head = ends[number]
            for number in before.backward:
                if back[number] > tail:
                    tail = back[number]
            ends.append(head + part.forward)
            back.append(tail + part.backward)
            if part.counts:
                work = works[id(record)]
                work.seconds += (part.forward + part.backward) * part.times
                work.head, work.tail = min(work.head, head), min(work.tail, tail)
        return {place: work for place, work in found.items() if work.seconds}

    def _operators(self) -> list[tuple[Operator, int, _Before]]:
        """Those that a plan places, each with its signature and what stands before it."""
        if not self._order:
            graph, makers, learning = self.graph, self.graph.makers, self.graph.learning
            placed = [op for op in graph.operators if op.stage is Stage.COMPUTE]
            numbers = {op.name: number for number, op in enumerate(placed)}
            for op in placed:
                inputs = [i.value for i in op.inputs if i.value in makers and makers[i.value].name in numbers]
                made = {value: numbers[makers[value].name] for value in inputs}
                learns = any(o.value in learning for o in op.outputs)
                back = (name for value, name in made.items() if learns and value in learning)
                before = _Before(tuple(dict.fromkeys(made.values())), tuple(dict.fromkeys(back)))
                self._order.append((op, graph.signatures[op.name], before))
        return self._order

    def _part(self, op: Operator, share: float, times: int) -> _Part:
        forward, backward = self._whole(op)
        return _Part(forward * share, backward * share, times, forward > 0)

    def _whole(self, op: Operator) -> tuple[float, float]:
        """Seconds of all of an operator, forward and backward, on one device."""
        number = self.graph.signatures[op.name]
        if number not in self._seconds:
            self._seconds[number] = self._seconds_of(op)
        return self._seconds[number]

    def _seconds_of(self, op: Operator) -> tuple[float, float]:
        kernel = op.row
        if not kernel.contraction or not op.flops:
            return 0.0, 0.0
        dtype = self.graph.values[op.outputs[0].value].dtype
        devices = [group.device for group in self.cluster.groups]
        rates = [d.peak_flops(dtype) if d.processors > 1 else d.achievable_flops(dtype) for d in devices]
        if kernel.fused is not None:
            rates += [d.attention_flops(dtype) for d in devices]
        forward = op.flops * causal_share(op) / max(rates)
        learning = self.graph.learning
        if not any(o.value in learning for o in op.outputs):
            return forward, 0.0
        factors = [i for i in op.inputs if not i.once][:2]
        return forward, forward * kernel.backward_factor * sum(i.value in learning for i in factors)

    def tasks(self, plan: Plan) -> int:
        """About as many as a simulation goes through: forwards and backwards of all parts in time."""
        most: dict[Placement, int] = {}
        for record in {id(r): r for r in plan.operators.values() if r.place is not None}.values():
            parts = prod(i.count for i in _cuts(plan, record)[1])
            most[record.home] = max(most.get(record.home, 0), parts)
        return 2 * sum(most.values())

    # -- memory --------------------------------------------------------------------------------------------------------

    def memory_bytes(self, plan: Plan) -> float:
        """Of the fullest device, at least."""
        shares: dict[tuple[int, int, int], float] = {}  # of a weight that an operator like this reads
        weights: dict[tuple[Placement, str], float] = {}  # the share of each that devices hold
        for use in self._weights():
            record = plan.of(use.operator.name)
            if record.place is None:
                continue
            key = id(record), use.signature, use.operand
            if (share := shares.get(key)) is None:
                share = shares[key] = _share(plan, use.operator, record, use.operand)
            where = record.place, use.weight
            weights[where] = max(weights.get(where, 0.0), share)
        sharded: dict[tuple[Kept, str], set[str]] = {}
        for shard in plan.shards:
            for kind, weight in product(Kept, shard.weights):
                if kind.stage <= shard.state.stage:
                    sharded.setdefault((kind, weight), set()).update(shard.axes)
        sizes = {mesh.name: dict(mesh.axes) for mesh in plan.meshes}
        held: dict[Placement, float] = {}
        for (place, name), share in weights.items():
            total = 0.0
            for kind, size in self._kept[name]:
                axes = sharded.get((kind, name), ())
                total += size / prod(sizes[place.mesh].get(axis, 1) for axis in axes) if axes else size
            held[place] = held.get(place, 0.0) + share * total
        return max((sum(_covering(place, held)) for place in held), default=0.0)

    def _weights(self) -> list[_Use]:
        """Every operand that is a weight; beside it the bytes that are kept of each weight."""
        if not self._uses:
            graph, signatures = self.graph, self.graph.signatures
            for value in graph.values.values():
                if value.origin is not Origin.WEIGHT:
                    continue
                kept = {Kept.WEIGHTS: ITEMSIZE.get(value.dtype, 4)}
                if value.name in graph.learning:
                    kept[Kept.GRADS] = self.state.gradient_bytes(value.dtype)
                    kept[Kept.OPTIMIZER] = self.state.optimizer_bytes(value.dtype)
                self._kept[value.name] = tuple((kind, prod(value.shape) * size) for kind, size in kept.items())
                for op in dict.fromkeys(o.name for o in graph.readers.get(value.name, ())):
                    operator = graph.by_name[op]
                    at = next(n for n, o in enumerate(operator.inputs) if o.value == value.name)
                    self._uses.append(_Use(value.name, operator, signatures[op], at))
        return self._uses

    def capacity_bytes(self, plan: Plan) -> float:
        """Of the smallest device that the plan uses."""
        devices = self.cluster.devices(tuple(range(plan.devices)))
        return min(d.memory_bytes for d in devices) / self.cluster.sharing(plan.devices)


def _cuts(plan: Plan, record: OpPlan) -> tuple[list[Index], list[Index]]:
    """The indices over devices, and those in time."""
    home = record.home
    axes = dict(next(m for m in plan.meshes if m.name == home.mesh).axes).keys() - {axis for axis, _ in home.fixed}
    return [i for i in record.indices if i.name in axes], [i for i in record.indices if i.name not in axes]


def _share_of(plan: Plan, record: OpPlan) -> tuple[float, int]:
    """How much of an operator each part is, at least, and how many of them run one after another."""
    here, times = _cuts(plan, record)
    devices, parts = prod(i.count for i in here), prod(i.count for i in times)
    return prod(map(_least, (*here, *times))) / devices / parts, parts


def _least(index: Index) -> float:
    """The smallest part, as a share of the mean."""
    return 1.0 if (sizes := index.sizes) is None else min(sizes) * len(sizes) / sum(sizes)


def _share(plan: Plan, op: Operator, record: OpPlan, number: int) -> float:
    """How much of an operand, a weight, each device needs that runs a part of the operator."""
    operand = op.inputs[number]
    return 1 / prod(i.count for i in _cuts(plan, record)[0] if operand.carries(i.dim))


def _covering(place: Placement, found: Mapping[Placement, T]) -> Iterator[T]:
    """What is found of the places of which every device of a place is one: of itself, and of those that fix less."""
    for count in range(len(place.fixed) + 1):
        for fixed in combinations(place.fixed, count):
            if (outer := Placement(place.mesh, fixed, place.span)) in found:
                yield found[outer]
