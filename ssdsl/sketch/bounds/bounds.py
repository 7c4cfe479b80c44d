"""Lower bounds on the cost of a plan, from its text and the model alone: a small part of the time of a simulation.

Seconds: a device computes its parts of all sums of products at the peak of the fastest device, once forward and once
for each factor that has a gradient, and does nothing else. It begins after one micro-batch has passed the operators
before its own, and ends before one micro-batch has gone back through them. So the bound contains the bubble of a
pipeline, for every order of tasks. Bytes: the device's parts of the weights, of their gradients and of the optimizer
state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from math import inf, prod
from operator import or_
from typing import NamedTuple, TypeVar

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.identity import ByIdentity, distinct
from ssdsl.ir.layout import Submesh
from ssdsl.model.graph import ITEMSIZE, Graph, Operand, Operator, Origin, Stage
from ssdsl.model.products import forward_flops, gradient_flops, learning_operands
from ssdsl.plan.plan import Index, OpPlan, Placement, Plan
from ssdsl.plan.plan import State as Kept
from ssdsl.record import Record

T = TypeVar("T")


class _Part(NamedTuple):
    """One part of an operator: the seconds of its forward and its backward, and the seconds of all parts that run one
    after another."""

    forward: float
    backward: float
    seconds: float


class _Product(NamedTuple):
    """A placed operator that takes time, by its number among placed ones, with its signature. `forward` are the last
    such operators before it, and `backward` the last to which its backward passes a gradient, by their numbers among
    these: of the operators between them none takes time."""

    number: int
    signature: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]


class _Use(NamedTuple):
    """A weight that an operator reads as operand number `operand`; `signature` is the operator's."""

    weight: str
    operator: Operator
    signature: int
    operand: int


class HeldBytes(NamedTuple):
    """The bytes that each of some devices holds at least, and the memory of the smallest of them. `turn_bytes` are in
    proportion to what one micro-batch keeps: an order that has several in flight needs as much for each."""

    size_bytes: float
    capacity_bytes: float
    turn_bytes: float = 0.0


class Least(Record):
    """Lower bounds of a plan: seconds of a step, and bytes of the devices of each place. `tasks` is an estimate of the
    number of tasks that a simulation runs: forwards and backwards of all parts in time."""

    step_s: float
    memory: tuple[HeldBytes, ...]
    tasks: int = 0


class _Cut(NamedTuple):
    """The cut of a record's operators by a plan: the indices over devices, the share of an operator that its smallest
    part has, the number of parts that run one after another, and whether backward computes them again."""

    home: Placement
    here: tuple[Index, ...]
    share: float
    times: int
    again: bool


@dataclass(slots=True)
class _Work:
    """The work of the devices of one place: seconds of computing, the least seconds before it (`head`), and after its
    last backward (`tail`); the bytes of all that one micro-batch makes there, and the number of micro-batches."""

    seconds: float = 0.0
    head: float = inf
    tail: float = inf
    made_bytes: float = 0.0
    times: int = 0

    def add(self, other: "_Work") -> None:
        """Adds work that the same devices do as well."""
        self.seconds += other.seconds
        self.made_bytes += other.made_bytes
        self.head, self.tail = min(self.head, other.head), min(self.tail, other.tail)


@dataclass(slots=True)
class _Last:
    """The last products before each operator, as sets of bits: those from which it comes without another product."""

    last: dict[str, int] = field(default_factory=dict)
    earlier: list[int] = field(default_factory=list)  # all products before a product

    def add(self, name: str, before: Iterable[str], is_product: bool) -> None:
        """Adds an operator with those before it."""
        last = self._of(before)
        if is_product:
            self.earlier.append(self._all_before(last))
            last = 1 << len(self.earlier) - 1
        self.last[name] = last

    def of(self, before: Iterable[str]) -> tuple[int, ...]:
        """The numbers of the last products among the operators `before` and those before them."""
        return tuple(_bits(self._of(before)))

    def _of(self, before: Iterable[str]) -> int:
        sets = {self.last[name] for name in before if name in self.last}
        if len(sets) == 1:
            return sets.pop()
        last = reduce(or_, sets, 0)
        return last & ~reduce(or_, (self.earlier[n] for n in _bits(last)), 0)

    def _all_before(self, last: int) -> int:
        return reduce(or_, (self.earlier[n] for n in _bits(last)), last)


def _bits(numbers: int) -> Iterator[int]:
    """The numbers of the bits that are set, the least first."""
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers -= lowest


@dataclass(slots=True)
class Bounds:
    """Lower bounds for the plans of one model on one cluster."""

    graph: Graph
    cluster: Cluster
    state: StatePrecision
    _placed: list[Operator] = field(default_factory=list)
    _products: list[_Product] = field(default_factory=list)
    _made: dict[int, int] = field(default_factory=dict)  # bytes that a whole operator makes, by signature
    _uses: list[_Use] = field(default_factory=list)
    _kept: dict[str, tuple[tuple[Kept, int], ...]] = field(default_factory=dict)  # bytes of a weight's state
    _seconds: dict[int, tuple[float, float]] = field(default_factory=dict)  # of whole operators, by signature

    def of(self, plan: Plan, halved: bool) -> Least:
        """The bounds of a plan. `halved`: an order may name halves of backwards, so that a `.wgrad` may come last and
        nothing follows it."""
        cuts = _cuts(plan)
        found = self._by_place(plan, cuts)
        tasks = 2 * sum(work.times for work in found.values())
        return Least(self._step_s(plan, found, halved), self._memory(plan, cuts, found), tasks)

    def _step_s(self, plan: Plan, found: Mapping[Placement, _Work], halved: bool) -> float:
        longest = 0.0
        for place in found:
            work = _Work()
            for own in _covering(place, found):
                work.add(own)
            if work.seconds:
                longest = max(longest, work.head + work.seconds + (0.0 if halved else work.tail))
        return max(longest, self._all_s(plan, found) / self.cluster.size) if self.cluster.shares_cores else longest

    def _all_s(self, plan: Plan, found: Mapping[Placement, _Work]) -> float:
        """The seconds that all devices compute together."""
        sizes = {mesh.name: dict(mesh.axes) for mesh in plan.meshes}

        def devices(place: Placement) -> int:
            fixed = {axis for axis, _ in place.fixed}
            return prod(size for axis, size in sizes[place.mesh].items() if axis not in fixed)

        return sum(devices(place) * work.seconds for place, work in found.items())

    def _by_place(self, plan: Plan, cuts: Mapping[OpPlan, _Cut]) -> dict[Placement, _Work]:
        products, signatures = self._ordered(), self.graph.signatures
        equal = {record: record for record in cuts}  # so that those of equal records are found at once
        one = ByIdentity((record, equal[record]) for record in distinct(plan.of(op.name) for op in self._placed))
        records = [one[plan.of(op.name)] for op in self._placed]
        works: dict[OpPlan, _Work] = {}  # by record; records with the same place share one
        found: dict[Placement, _Work] = {}
        for record, cut in cuts.items():
            work = works[record] = found.setdefault(cut.home, _Work())
            work.times = max(work.times, cut.times)
        alike = Counter(zip(records, (signatures[op.name] for op in self._placed), strict=True))
        for (record, signature), count in alike.items():
            works[record].made_bytes += count * self._made[signature] * cuts[record].share
        parts: dict[tuple[OpPlan, int], _Part] = {}
        ends: list[float] = []  # when one micro-batch's forward ends, from the step's start
        back: list[float] = []  # seconds of its backward and of the backwards that follow
        for each in products:
            record = records[each.number]
            if (part := parts.get(key := (record, each.signature))) is None:
                part = parts[key] = self._part(self._placed[each.number], cuts[record])
            head = max((ends[n] for n in each.forward), default=0.0)
            tail = max((back[n] for n in each.backward), default=0.0)
            ends.append(head + part.forward)
            back.append(tail + part.backward)
            work = works[record]
            work.seconds += part.seconds
            work.head, work.tail = min(work.head, head), min(work.tail, tail)
        return found

    def _ordered(self) -> list[_Product]:
        """The placed operators that take time, in the graph's order."""
        if self._placed:
            return self._products
        graph, makers, learning = self.graph, self.graph.makers, self.graph.learning
        self._placed += (op for op in graph.operators if op.stage is Stage.COMPUTE)
        forth, back = _Last(), _Last()
        for number, op in enumerate(self._placed):
            signature = graph.signatures[op.name]
            if signature not in self._made:
                made = (graph.values[o.value] for o in op.outputs if o.value in learning)
                self._made[signature] = sum(prod(value.shape) * value.itemsize for value in made)
            read = [(i.value, makers[i.value].name) for i in op.inputs if i.value in makers]
            learns = any(o.value in learning for o in op.outputs)
            before = [name for _, name in read]
            behind = [name for value, name in read if learns and value in learning]
            if takes_time := self._whole(op)[0] > 0:
                self._products.append(_Product(number, signature, forth.of(before), back.of(behind)))
            forth.add(op.name, before, takes_time)
            back.add(op.name, behind, takes_time)
        return self._products

    def _part(self, op: Operator, cut: _Cut) -> _Part:
        forward, backward = self._whole(op)
        if cut.again and self._may_be_again(op):
            backward += forward
        return _Part(forward * cut.share, backward * cut.share, (forward + backward) * cut.share * cut.times)

    def _may_be_again(self, op: Operator) -> bool:
        """Whether backward computes an operator again where the plan says so: one that learns, not on weights alone."""
        results = {o.value for o in op.outputs}
        return not results.isdisjoint(self.graph.learning) and not results <= self.graph.alone

    def _whole(self, op: Operator) -> tuple[float, float]:
        """The seconds of a whole operator on one device, forward and backward."""
        number = self.graph.signatures[op.name]
        if number not in self._seconds:
            self._seconds[number] = self._seconds_of(op)
        return self._seconds[number]

    def _seconds_of(self, op: Operator) -> tuple[float, float]:
        kernel = op.row
        if not kernel.contraction or not op.flops or op.name in self.graph.repeated:  # these run beside their readers
            return 0.0, 0.0
        dtype = self.graph.values[op.outputs[0].value].dtype
        devices = [group.device for group in self.cluster.groups]
        rates = [d.peak_flops(dtype) if d.processors > 1 else d.achievable_flops(dtype) for d in devices]
        if kernel.fused is not None:
            rates += [d.attention_flops(dtype) for d in devices]
        backward = sum(flops for _, flops in gradient_flops(op, learning_operands(self.graph, op)))
        return forward_flops(op) / max(rates), kernel.backward_factor * backward / max(rates)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _memory(
        self, plan: Plan, cuts: Mapping[OpPlan, _Cut], found: Mapping[Placement, _Work]
    ) -> tuple[HeldBytes, ...]:
        shares: dict[tuple[OpPlan, int, int], float] = {}  # by record, signature and operand
        weights: dict[tuple[Placement, str], float] = {}  # the share of each weight that devices hold
        for use in self._weights():
            record = plan.of(use.operator.name)
            if record.place is None:
                continue
            key = record, use.signature, use.operand
            if (share := shares.get(key)) is None:
                share = shares[key] = _share(cuts[record], use.operator.inputs[use.operand])
            where = record.place, use.weight
            weights[where] = max(weights.get(where, 0.0), share)
        portions = {axis: min(own) / sum(own) for shard in plan.state.shards for axis, own in shard.portions}
        sharded: dict[tuple[Kept, str], set[str]] = {}
        for shard in (*plan.state.shards, *plan.state.matrices):
            for kind in (kind for kind in Kept if kind.stage <= shard.state.stage):
                for weight in shard.weights:
                    sharded.setdefault((kind, weight), set()).update(shard.axes)
        sizes = {mesh.name: dict(mesh.axes) for mesh in plan.meshes}
        on_host = {(Kept.OPTIMIZER, weight) for stated in plan.state.on_host for weight in stated.weights}
        there = (stated.weights for stated in plan.state.on_host if stated.state is Kept.WEIGHTS)
        on_host |= {(Kept.WEIGHTS, weight) for weights in there for weight in weights}
        held: dict[Placement, float] = {}
        for (place, name), share in weights.items():
            total = 0.0
            for kind, size in self._kept[name]:
                if (kind, name) in on_host:
                    continue
                axes = sharded.get((kind, name), ())
                unequal = prod(portions[a] for a in axes if a in portions and a in sizes[place.mesh])
                equal = prod(sizes[place.mesh].get(axis, 1) for axis in axes if axis not in portions)
                total += size * unequal / equal if axes else size
            held[place] = held.get(place, 0.0) + share * total

        def of(place: Placement) -> HeldBytes:
            made = sum(work.made_bytes for work in _covering(place, found))
            return HeldBytes(sum(_covering(place, held)), self._capacity_bytes(plan, place), made)

        return tuple(map(of, held))

    def _weights(self) -> list[_Use]:
        """All operands that are weights; also notes the bytes of each weight's state."""
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

    def _capacity_bytes(self, plan: Plan, place: Placement) -> float:
        """The memory of the smallest device of a place."""
        mesh = next(mesh for mesh in plan.meshes if mesh.name == place.mesh)
        devices = self.cluster.devices(tuple(Submesh(mesh, place.fixed).ranks()))
        return min(d.memory_bytes for d in devices) / self.cluster.sharing(plan.devices)


def _cuts(plan: Plan) -> dict[OpPlan, _Cut]:
    """The cut of each record's operators."""
    sizes = {mesh.name: dict(mesh.axes) for mesh in plan.meshes}
    found: dict[OpPlan, _Cut] = {}
    for record in dict.fromkeys(r for r in plan.operators.values() if r.place is not None):
        axes = sizes[record.home.mesh].keys() - {axis for axis, _ in record.home.fixed}
        here = tuple(i for i in record.indices if i.name in axes)
        devices, parts = prod(i.digit.parts for i in here), prod(i.digit.parts for i in record.indices)
        share = prod(map(_least, record.indices)) / parts
        found[record] = _Cut(record.home, here, share, parts // devices, record.is_recomputed)
    return found


def _least(index: Index) -> float:
    """The size of the smallest part, as a share of the mean."""
    return 1.0 if (sizes := index.digit.sizes) is None else min(sizes) * len(sizes) / sum(sizes)


def _share(cut: _Cut, operand: Operand) -> float:
    """The share of an operand, a weight, that each device needs to run a part of its operator."""
    return 1 / prod(i.digit.parts for i in cut.here if operand.carries(i.dim))


def _covering(place: Placement, found: Mapping[Placement, T]) -> Iterator[T]:
    """The entries of all places that include every device of this one: its own, and those that fix fewer axes."""
    for count in range(len(place.fixed) + 1):
        for fixed in combinations(place.fixed, count):
            if (outer := Placement(place.mesh, fixed, place.span)) in found:
                yield found[outer]
