"""A plan for another graph of the same model: its module in eval mode, or with a batch of another size.

Nothing of the plan's text is read again. An operator of the other graph takes the place and the indices of its twin:
the operator of the same kind in the same module, called as often before. So selections may name what only training has,
and `balance` cuts where it cut. What has no twin goes where the weights are that it reads, or beside its operands.
Where the other graph trains, too, orders and recomputation are those of the twins; an evaluation runs as early as data
allow. A dimension of another size is cut into unequal parts, or into fewer (`refit.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ssdsl.model.graph import Graph, Operator, Origin, Stage
from ssdsl.plan.plan import Index, Order, Placement, Plan, TaskSet, Timed
from ssdsl.plan.resized import Resized, numbers_of

Fact = TypeVar("Fact")
Twin = tuple[str, str, int]  # the module, the kind, and how many of the kind there were before in the module


def carry_over(plan: Plan, graph: Graph, *, trains: bool = False, unequal: bool = True) -> Plan:
    """The plan of `graph`, another graph of the plan's model, which `trains` or not; without `unequal` parts of one
    dimension are of one size."""
    carried = _Carried(plan, graph, unequal)
    carried.twins()
    carried.others()
    found = replace(
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
    return carried.in_training(found) if trains else found


@dataclass(slots=True)
class _Carried:
    plan: Plan
    graph: Graph
    unequal: bool
    indices: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    heirs: dict[str, list[str]] = field(default_factory=dict)  # of an operator of the plan, those that follow it
    counts: dict[str, int] = field(default_factory=dict)  # of indices that have fewer parts here
    sets: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)  # of operators, and of those that follow

    def twins(self) -> None:
        """Gives each operator what the plan says of its twin."""
        known = dict(_named(self.plan.graph.operators))
        pairs = [(known[twin], o) for twin, o in _named(self.graph.operators) if twin in known]
        resized = Resized.of(self.plan, pairs, self.unequal)
        for other, operator in pairs:
            self.heirs.setdefault(other.name, []).append(operator.name)
            if operator.stage is Stage.COMPUTE and other.name in self.plan.placements:
                self.placements[operator.name] = self.plan.placements[other.name]
            moved = tuple(_moved(self.plan.indices.get(other.name, ()), other, operator, resized))
            self.indices[operator.name] = moved
        self.counts = resized.counts()

    # -- what is of training alone -------------------------------------------------------------------------------------

    def in_training(self, plan: Plan) -> Plan:
        """The carried plan with what the plan of a training says beside places and indices."""
        mine = self.plan
        clocks = (replace(clock, rows=tuple(self._rows(clock.rows))) for clock in mine.clocks)
        recomputes = (replace(r, units=tuple(filter(None, map(self._heirs, r.units)))) for r in mine.recomputes)
        return replace(
            plan,
            orders=tuple(self._orders(mine.orders)),
            clocks=tuple(clock for clock in clocks if clock.rows),
            recomputes=tuple(r for r in recomputes if r.units),
            regathered=self._inherited(mine.regathered),
            shards=mine.shards,
            prefetched=self._inherited(mine.prefetched),
        )

    def _heirs(self, operators: frozenset[str]) -> frozenset[str]:
        if operators not in self.sets:  # rows of a clock name one set again and again
            self.sets[operators] = frozenset(heir for name in operators for heir in self.heirs.get(name, ()))
        return self.sets[operators]

    def _inherited(self, facts: Mapping[str, Fact]) -> dict[str, Fact]:
        """What is said of each operator, of those that follow it."""
        return {heir: fact for name, fact in facts.items() for heir in self.heirs.get(name, ())}

    def _tasks(self, tasks: TaskSet) -> TaskSet | None:
        """The tasks that follow some; None for coordinates that there are no more."""
        if any(at >= self.counts.get(name, at + 1) for name, at in tasks.fixed):
            return None
        fixed = tuple((name, at) for name, at in tasks.fixed if self.counts.get(name) != 1)
        operators = self._heirs(tasks.operators)
        return replace(tasks, operators=operators, fixed=fixed) if operators else None

    def _orders(self, orders: Iterable[Order]) -> Iterator[Order]:
        for order in orders:
            before, after = self._tasks(order.before), self._tasks(order.after)
            if before is not None and after is not None:
                yield replace(order, before=before, after=after)

    def _rows(self, rows: Iterable[Timed]) -> Iterator[Timed]:
        for row in rows:
            if (tasks := self._tasks(row.tasks)) is not None:
                yield replace(row, tasks=tasks)

    # -- operators without a twin --------------------------------------------------------------------------------------

    def others(self) -> None:
        """Puts operators without a twin beside a neighbour: behind those before them, else before those behind them."""
        left = [o for o in self.graph.operators if o.stage is Stage.COMPUTE and o.name not in self.placements]
        makers, users = self.graph.makers, self.graph.readers
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
            for heirs in self.heirs.values():
                if host.name in heirs:
                    heirs.append(operator.name)
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


def _moved(indices: Iterable[Index], twin: Operator, operator: Operator, resized: Resized) -> Iterator[Index]:
    """The indices of a twin, along the dimensions of the same names, as they cut these."""
    indices = tuple(indices)
    numbers = numbers_of(twin, operator)
    for index in indices:
        at = numbers.get(index.dim)
        if at is None or operator.dims[at].fixed:
            continue
        moved = resized.moved(indices, index, twin, operator.dims[at].size)
        if moved.count > 1:
            yield replace(moved, dim=at, also=None if index.also is None else numbers.get(index.also))
