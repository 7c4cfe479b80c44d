"""A plan for another graph of the same model: its module in eval mode.

Nothing of the plan's text is read again. An operator of the other graph takes the place and the indices of its twin:
the operator of the same kind in the same module, called as often before. So selections may name what only training has,
and `balance` cuts where it cut. What has no twin goes where the weights are that it reads, or beside its operands.
Orders and recomputation are of training alone, and left out: an evaluation runs as early as data allow. The other graph
may have a batch of another size; where parts do not divide it, an operator runs whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ssdsl.model.graph import Graph, Operator, Origin, Stage
from ssdsl.plan.plan import Index, Placement, Plan

Twin = tuple[str, str, int]  # the module, the kind, and how many of the kind there were before in the module


def carry_over(plan: Plan, graph: Graph) -> Plan:
    """The plan of `graph`, another graph of the plan's model."""
    carried = _Carried(plan, graph)
    carried.twins()
    carried.others()
    return replace(
        plan,
        graph=graph,
        indices={o.name: found for o in graph.operators if (found := carried.indices.get(o.name))},
        placements={o.name: carried.placements[o.name] for o in graph.operators if o.name in carried.placements},
        orders=(),
        clocks=(),
        recomputes=(),
        regathered={},
        shards=(),
        whole={},
        prefetched={},
    )


@dataclass(slots=True)
class _Carried:
    plan: Plan
    graph: Graph
    indices: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)

    def twins(self) -> None:
        """Gives each operator what the plan says of its twin."""
        known = dict(_named(self.plan.graph.operators))
        for twin, operator in _named(self.graph.operators):
            if (other := known.get(twin)) is not None:
                if operator.stage is Stage.COMPUTE and other.name in self.plan.placements:
                    self.placements[operator.name] = self.plan.placements[other.name]
                self.indices[operator.name] = tuple(_moved(self.plan.indices.get(other.name, ()), other, operator))

    def others(self) -> None:
        """Puts operators without a twin beside a neighbour: behind those before them, else before those behind them."""
        left = [o for o in self.graph.operators if o.stage is Stage.COMPUTE and o.name not in self.placements]
        makers = {o.value: operator for operator in self.graph.operators for o in operator.outputs}
        users: dict[str, list[Operator]] = {}
        for operator in self.graph.operators:
            for operand in operator.inputs:
                users.setdefault(operand.value, []).append(operator)
        homes = self._homes()
        for operator in left:
            operands = [makers[o.value] for o in reversed(operator.inputs) if o.value in makers]
            self._join(operator, operands, next((homes[o.value] for o in operator.inputs if o.value in homes), None))
        for operator in reversed(left):
            if operator.name not in self.placements:
                self._join(operator, [u for o in operator.outputs for u in users.get(o.value, ())], None)
        for operator in left:  # what stands alone: an output that follows from nothing placed
            self.placements.setdefault(operator.name, next(iter(self.plan.placements.values())))

    def _homes(self) -> Mapping[str, Placement]:
        """Where the plan's operators read each weight and buffer."""
        values = self.plan.graph.values
        return {
            o.value: self.plan.placements[operator.name]
            for operator in self.plan.graph.operators
            for o in operator.inputs
            if values[o.value].origin in (Origin.WEIGHT, Origin.BUFFER) and operator.name in self.plan.placements
        }

    def _join(self, operator: Operator, neighbours: list[Operator], home: Placement | None) -> None:
        """Puts an operator at a home, or where the first of its neighbours is; there it is cut as that one."""
        host = next((n for n in neighbours if n.name in self.placements), None)
        place = home if home is not None else self.placements[host.name] if host is not None else None
        if place is None:
            return
        self.placements[operator.name] = place
        if host is not None and _where(self.placements[host.name]) == _where(place):
            self.indices[operator.name] = tuple(_shared(self.indices.get(host.name, ()), host, operator))


def _where(place: Placement) -> tuple[str, tuple[tuple[str, int], ...]]:
    return place.mesh, place.fixed


def _shared(indices: Iterable[Index], host: Operator, operator: Operator) -> Iterator[Index]:
    """The indices of a neighbour along the dimensions that the two have in common."""
    for index in indices:
        cls = host.dims[index.dim].cls
        at = next((k for k, d in enumerate(operator.dims) if d.cls == cls and not (d.fixed or d.combined)), None)
        if at is not None:
            yield replace(index, dim=at, also=None)


def _named(operators: Iterable[Operator]) -> Iterator[tuple[Twin, Operator]]:
    count: Counter[tuple[str, str]] = Counter()
    for operator in operators:
        place = (operator.path, operator.kind)
        yield (*place, count[place]), operator
        count[place] += 1


def _moved(indices: Iterable[Index], twin: Operator, operator: Operator) -> Iterator[Index]:
    """The indices of a twin, along the dimensions of the same names; those that do not divide these are left out."""
    names = {d.name: number for number, d in enumerate(operator.dims)}
    alike = [d.name for d in twin.dims] == [d.name for d in operator.dims]
    left = {number: d.size for number, d in enumerate(operator.dims)}
    for index in indices:
        at = index.dim if alike else names.get(twin.dims[index.dim].name)
        if at is None or operator.dims[at].fixed:
            continue
        fits = left[at] % index.count == 0 if index.sizes is None else left[at] == sum(index.sizes)
        if fits:
            left[at] //= index.count
            also = None if index.also is None else names.get(twin.dims[index.also].name)
            yield replace(index, dim=at, also=also)
