"""Carries a plan over to another graph of the same model: its module in eval mode, or with a batch of another size.

The plan's text is not read again. An operator of the other graph takes the place and the indices of its twin: the
operator of the same kind in the same module, called as often before; of parts that a plan names it is the first. So
selections may name operators that only training has, and `balance` keeps its cuts. An operator without a twin goes to
the devices of the weights that it reads, or beside its operands. If the other graph trains, too, it takes the twins'
orders and recomputation; an evaluation runs as early as data allow. A dimension of another size is cut into unequal
parts if equal ones do not divide it (`refit.py`). All operators of another graph of a model have the same new cuts
(`Resized`).
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ssdsl.model.graph import Graph, Operator, Origin, Stage, twins
from ssdsl.plan.neighbours.place_beside import beside
from ssdsl.plan.neighbours.refit import IndexParts, Keep, refit, shares
from ssdsl.plan.plan import NO_STATE, NOTHING, ClockRow, Index, OpPlan, Order, Placement, Plan, TaskSet
from ssdsl.plan.regions import Digit
from ssdsl.record import replace

Key = tuple[int, int]  # the size of a dimension in the plan, and in the other graph
Chain = tuple[IndexParts, ...]  # all indices of an operator that cut one dimension, the outermost first


@dataclass(slots=True)
class Resized:
    """The indices that cut each resized dimension, and their new cuts, which are the same for all operators.

    `chains` has the distinct chains of operators, in the order in which they were found, by the old and the new size;
    `fits` the new cuts, by the new size and the chain. `keep` says what is kept of the plan's parts.
    """

    plan: Plan
    keep: Keep
    chains: dict[Key, dict[Chain, None]] = field(default_factory=dict)
    fits: dict[tuple[int, Chain], Mapping[str, Digit]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, pairs: Iterable[tuple[Operator, Operator]], keep: Keep) -> "Resized":
        """Collects the resized dimensions of operators of the plan, each paired with its twin in the other graph."""
        found = Resized(plan, keep)
        for twin, operator in pairs:
            indices, numbers = plan.of(twin.name).indices, numbers_of(twin, operator)
            for dim in dict.fromkeys(i.dim for i in indices):
                sizes = twin.dims[dim].size, operator.dims[numbers[dim]].size if dim in numbers else 1
                if sizes[0] != sizes[1]:
                    found.chains.setdefault(sizes, {})[found._chain(indices, dim, twin)] = None
        return found

    def moved(self, indices: tuple[Index, ...], index: Index, twin: Operator, size: int) -> Index:
        """An index with its cut of the dimension at the new size.

        An operator may lack outer indices that others have. Regions of an inner index count positions inside an outer
        part. Without that outer index they are longer, by its number of parts.
        """
        key = twin.dims[index.dim].size, size
        if key[0] == size:
            return index
        mine = self._chain(indices, index.dim, twin)
        chain = max((chain for chain in self.chains[key] if set(chain) >= set(mine)), key=len)
        if index.within:
            chain = self._around(key, mine, {i.name for i in indices if i.within})
        fits = self._fit(size, chain)
        outer = itertools.takewhile(lambda cut: cut.name != index.name, chain)
        lacking = math.prod(fits[cut.name].parts for cut in outer if cut not in mine)
        return replace(index, digit=fits[index.name]).of_all(lacking)

    def counts(self) -> dict[str, int]:
        """The new numbers of parts of indices that have fewer parts than in the plan."""
        found: dict[str, int] = {}
        for (_, size), chains in self.chains.items():
            for chain in chains:
                fits = self._fit(size, chain)
                fewer = {c.name: fits[c.name].parts for c in chain if fits[c.name].parts < c.digit.parts}
                found |= {name: min(n, found.get(name, n)) for name, n in fewer.items()}
        return found

    def _around(self, key: Key, mine: Chain, within: set[str]) -> Chain:
        """The chain of an operator with indices `within` others: these follow the indices of its neighbours."""
        others = (chain for chain in self.chains[key] if within.isdisjoint(cut.name for cut in chain))
        return (*max(others, key=len, default=()), *(cut for cut in mine if cut.name in within))

    def _fit(self, size: int, chain: Chain) -> Mapping[str, Digit]:
        if (size, chain) not in self.fits:
            self.fits[size, chain] = refit(size, chain, self.keep)
        return self.fits[size, chain]

    def _chain(self, indices: tuple[Index, ...], dim: int, twin: Operator) -> Chain:
        place = self.plan.of(twin.name).place  # an operator on data has none: it runs wherever it is read
        meshes = (m for m in self.plan.meshes if place is None or m.name == place.mesh)
        axes = {axis for mesh in meshes for axis, _ in mesh.axes}
        return tuple(IndexParts(i.name, shares(i.digit), i.name not in axes) for i in indices if i.dim == dim)


def numbers_of(twin: Operator, operator: Operator) -> dict[int, int]:
    """For each dimension of a twin, its number in the operator: the same number if all names agree, else that of its
    name."""
    names = [d.name for d in operator.dims]
    if names == [d.name for d in twin.dims]:
        return {n: n for n in range(len(names))}
    return {n: names.index(d.name) for n, d in enumerate(twin.dims) if d.name in names}


def carry_over(plan: Plan, graph: Graph, *, trains: bool = False, keep: Keep = "regions") -> Plan:
    """The plan for `graph`, another graph of the plan's model; with `trains` it keeps orders and state. `keep` says
    what it keeps of the parts of a dimension of another size."""
    carried = _Carried(plan, graph, keep)
    carried.place_twins()
    carried.place_others()
    records = {o.name: carried.records[o.name] for o in graph.operators if o.name in carried.records}
    found = replace(
        plan,
        graph=graph,
        operators=records,
        orders=(),
        clocks=(),
        state=NO_STATE,
    )
    if trains:
        return carried.in_training(found)
    # an evaluation has no backward, so nothing is recomputed or gathered again
    forward = {n: OpPlan(record.place, record.indices, stays=record.stays) for n, record in records.items()}
    return replace(found, operators=forward)


@dataclass(slots=True)
class _Carried:
    """The records of the operators of another graph, as far as they are known."""

    plan: Plan
    graph: Graph
    keep: Keep
    records: dict[str, OpPlan] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # of indices that have fewer parts here

    def place_twins(self) -> None:
        """Gives each operator what the plan says of its twin."""
        known = dict(twins(self._own()))
        pairs = [(known[twin], o) for twin, o in twins(self.graph.operators) if twin in known]
        resized = Resized.of(self.plan, pairs, self.keep)
        for twin, operator in pairs:
            record = self.plan.of(twin.name)
            place = record.place if operator.stage is Stage.COMPUTE else None
            indices = tuple(_moved(record.indices, twin, operator, resized))
            self.records[operator.name] = replace(record, place=place, indices=indices, whole=())
        self.counts = resized.counts()

    def _own(self) -> Iterator[Operator]:
        """The operators of the model, of which a plan may name parts: of these the first."""
        for operator in self.plan.graph.operators:
            is_first = not any(run.first for run in self.plan.of(operator.name).parts)
            if is_first and operator.name not in self.plan.graph.inserted:
                yield operator

    # -- operators without a twin --------------------------------------------------------------------------------------

    def place_others(self) -> None:
        """Puts each operator without a twin beside a neighbour: an operator that it reads from, else one that reads
        the same, else one that reads it."""
        left = [o for o in self.graph.operators if o.stage is Stage.COMPUTE and self._place(o) is None]
        readers = self._places_of_readers()
        for operator in left:
            at = next((readers[o.value] for o in operator.inputs if o.value in readers), None)
            self._join(operator, [*self.graph.makers_of(operator)[::-1], *self._relatives(operator, at)], at)
        for operator in reversed(left):
            if self._place(operator) is None:
                self._join(operator, self.graph.readers_of(operator), None)
        first = next(record.place for record in self.plan.operators.values() if record.place is not None)
        for operator in left:  # without neighbours: an output that follows from nothing placed
            if self._place(operator) is None:
                self.records[operator.name] = OpPlan(place=first)

    def _place(self, operator: Operator) -> Placement | None:
        return self.records.get(operator.name, NOTHING).place

    def _places_of_readers(self) -> Mapping[str, Placement]:
        """For each weight and buffer, the place of the last operator of the plan that reads it."""
        values = self.plan.graph.values
        return {
            o.value: place
            for operator in self.plan.graph.operators
            if (place := self.plan.of(operator.name).place) is not None
            for o in operator.inputs
            if values[o.value].origin in (Origin.WEIGHT, Origin.BUFFER)
        }

    def _relatives(self, operator: Operator, at: Placement | None) -> Iterator[Operator]:
        """The operators that read what an operator reads, or what this is made of by operators without a place. With
        `at`, only those there."""
        seen = {operator.name}
        values = [o.value for o in operator.inputs]
        for value in values:  # grows
            for reader in self.graph.readers.get(value, ()):
                place = self._place(reader)
                if reader.name not in seen and place is not None and at in (None, place):
                    seen.add(reader.name)
                    yield reader
            maker = self.graph.makers.get(value)
            if maker is not None and self._place(maker) is None and maker.name not in seen:
                seen.add(maker.name)
                values += [o.value for o in maker.inputs]

    def _join(self, operator: Operator, neighbours: list[Operator], at: Placement | None) -> None:
        """Puts an operator beside its first placed neighbour, and cuts it like that one. If the neighbour is not at
        `at`, the operator is put there, and not cut. With `at` None any place will do."""
        host = next((n for n in neighbours if self._place(n) is not None), None)
        if host is not None and at in (None, self._place(host)):
            self.records[operator.name] = beside(host, self.records[host.name], operator, combines=False)
        elif at is not None:
            self.records[operator.name] = OpPlan(place=at)

    # -- what is of training alone -------------------------------------------------------------------------------------

    def in_training(self, plan: Plan) -> Plan:
        """The carried plan with the facts of tasks and of state that only training needs: orders, clocks, shards."""
        mine = self.plan
        sets = frozenset[int]().union(*(record.sets for record in plan.operators.values()))
        clocks = (replace(clock, rows=tuple(self._rows(clock.rows, sets))) for clock in mine.clocks)
        orders = tuple(self._orders(mine.orders, sets))
        return replace(
            plan,
            orders=orders,
            clocks=tuple(clock for clock in clocks if clock.rows),
            state=mine.state,
        )

    def _tasks(self, tasks: TaskSet, sets: frozenset[int]) -> TaskSet | None:
        """The same tasks in the other graph, in which operators belong to the task sets of these numbers. None if no
        operator of the tasks, or not their coordinates, exist there."""
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


def _moved(indices: Iterable[Index], twin: Operator, operator: Operator, resized: Resized) -> Iterator[Index]:
    """The indices of a twin, moved to the dimensions of the same names. Indices that cut nothing there are left out."""
    indices = tuple(indices)
    numbers = numbers_of(twin, operator)
    for index in indices:
        at = numbers.get(index.dim)
        if at is None or operator.dims[at].fixed:
            continue
        moved = resized.moved(indices, index, twin, operator.dims[at].size)
        if moved.digit.parts > 1:
            yield replace(moved, dim=at, also=None if index.also is None else numbers.get(index.also))
