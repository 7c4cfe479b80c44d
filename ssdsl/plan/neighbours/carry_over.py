"""Carries a plan over to another graph of the same model: its module in eval mode, or with a batch of another size.

The plan's text is not read again. An operator of the other graph takes the place and the indices of its twin: the
operator of the same kind in the same module, called as often before. So selections may name operators that only
training has, and `balance` keeps its cuts. An operator without a twin goes to the devices of the weights that it reads,
or beside its operands. If the other graph trains, too, it takes the twins' orders and recomputation; an evaluation runs
as early as data allow. A dimension of another size is cut into unequal parts, or into fewer (`other_sizes.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ssdsl.model.graph import Graph, Operator, Origin, Stage
from ssdsl.plan.neighbours.place_beside import beside
from ssdsl.plan.other_sizes import Resized, numbers_of
from ssdsl.plan.plan import NOTHING, ClockRow, Index, OpPlan, Order, Placement, Plan, TaskSet

Twin = tuple[str, str, int]  # the module, the kind, and how many of the kind there were before in the module


def carry_over(plan: Plan, graph: Graph, *, trains: bool = False, unequal: bool = True) -> Plan:
    """The plan for `graph`, another graph of the plan's model; with `trains` it keeps orders and state. Without
    `unequal` all parts of a dimension have one size."""
    carried = _Carried(plan, graph, unequal)
    carried.twins()
    carried.others()
    records = {o.name: carried.records[o.name] for o in graph.operators if o.name in carried.records}
    found = replace(plan, graph=graph, operators=records, orders=(), clocks=(), shards=())
    if trains:
        return carried.in_training(found)
    alone = {n: OpPlan(record.place, record.indices, stays=record.stays) for n, record in records.items()}
    return replace(found, operators=alone)


@dataclass(slots=True)
class _Carried:
    plan: Plan
    graph: Graph
    unequal: bool
    records: dict[str, OpPlan] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # of indices that have fewer parts here

    def twins(self) -> None:
        """Gives each operator what the plan says of its twin."""
        known = dict(_named(self.plan.graph.operators))
        pairs = [(known[twin], o) for twin, o in _named(self.graph.operators) if twin in known]
        resized = Resized.of(self.plan, pairs, self.unequal)
        for twin, operator in pairs:
            record = self.plan.of(twin.name)
            place = record.place if operator.stage is Stage.COMPUTE else None
            indices = tuple(_moved(record.indices, twin, operator, resized))
            self.records[operator.name] = replace(record, place=place, indices=indices, whole=())
        self.counts = resized.counts()

    # -- operators without a twin --------------------------------------------------------------------------------------

    def others(self) -> None:
        """Puts each operator without a twin beside a neighbour: an operator that it reads from, else one that reads
        it."""
        left = [o for o in self.graph.operators if o.stage is Stage.COMPUTE and self._place(o) is None]
        makers, users = self.graph.makers, self.graph.readers
        homes = self._homes()
        for operator in left:
            operands = [makers[o.value] for o in reversed(operator.inputs) if o.value in makers]
            self._join(operator, operands, next((homes[o.value] for o in operator.inputs if o.value in homes), None))
        for operator in reversed(left):
            if self._place(operator) is None:
                self._join(operator, [u for o in operator.outputs for u in users.get(o.value, ())], None)
        first = next(record.place for record in self.plan.operators.values() if record.place is not None)
        for operator in left:  # without neighbours: an output that follows from nothing placed
            if self._place(operator) is None:
                self.records[operator.name] = OpPlan(place=first)

    def _place(self, operator: Operator) -> Placement | None:
        return self.records.get(operator.name, NOTHING).place

    def _homes(self) -> Mapping[str, Placement]:
        """The place at which the plan's operators read each weight and buffer."""
        values = self.plan.graph.values
        return {
            o.value: place
            for operator in self.plan.graph.operators
            if (place := self.plan.of(operator.name).place) is not None
            for o in operator.inputs
            if values[o.value].origin in (Origin.WEIGHT, Origin.BUFFER)
        }

    def _join(self, operator: Operator, neighbours: list[Operator], home: Placement | None) -> None:
        """Puts an operator at `home`, or where the first placed neighbour is; there it is cut as that one."""
        host = next((n for n in neighbours if self._place(n) is not None), None)
        if host is not None and home in (None, self._place(host)):
            self.records[operator.name] = beside(host, self.records[host.name], operator, combines=False)
        elif home is not None:
            self.records[operator.name] = OpPlan(place=home)

    # -- what is of training alone -------------------------------------------------------------------------------------

    def in_training(self, plan: Plan) -> Plan:
        """The carried plan with the facts of tasks and of state that only training needs."""
        mine = self.plan
        sets = frozenset[int]().union(*(record.sets for record in plan.operators.values()))
        clocks = (replace(clock, rows=tuple(self._rows(clock.rows, sets))) for clock in mine.clocks)
        orders = tuple(self._orders(mine.orders, sets))
        return replace(plan, orders=orders, clocks=tuple(c for c in clocks if c.rows), shards=mine.shards)

    def _tasks(self, tasks: TaskSet, sets: frozenset[int]) -> TaskSet | None:
        """The same tasks in the other graph; None if none of their operators, or not their coordinates, exist there."""
        if tasks.number not in sets or any(at >= self.counts.get(name, at + 1) for name, at in tasks.fixed):
            return None
        return replace(tasks, fixed=tuple((name, at) for name, at in tasks.fixed if self.counts.get(name) != 1))

    def _orders(self, orders: Iterable[Order], sets: frozenset[int]) -> Iterator[Order]:
        for order in orders:
            before, after = self._tasks(order.before, sets), self._tasks(order.after, sets)
            if before is not None and after is not None:
                yield replace(order, before=before, after=after)

    def _rows(self, rows: Iterable[ClockRow], sets: frozenset[int]) -> Iterator[ClockRow]:
        for row in rows:
            if (tasks := self._tasks(row.tasks, sets)) is not None:
                yield replace(row, tasks=tasks)


def _named(operators: Iterable[Operator]) -> Iterator[tuple[Twin, Operator]]:
    count: Counter[tuple[str, str]] = Counter()
    for operator in operators:
        place = (operator.path, operator.kind)
        yield (*place, count[place]), operator
        count[place] += 1


def _moved(indices: Iterable[Index], twin: Operator, operator: Operator, resized: Resized) -> Iterator[Index]:
    """The indices of a twin, moved to the dimensions of the same names. Indices that cut nothing there are left out."""
    indices = tuple(indices)
    numbers = numbers_of(twin, operator)
    for index in indices:
        at = numbers.get(index.dim)
        if at is None or operator.dims[at].fixed:
            continue
        moved = resized.moved(indices, index, twin, operator.dims[at].size)
        if moved.count > 1:
            yield replace(moved, dim=at, also=None if index.also is None else numbers.get(index.also))
