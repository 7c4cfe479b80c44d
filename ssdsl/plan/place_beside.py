"""Operators that a plan's paths leave out, put beside their neighbours.

A residual, an activation or a division in the forward of the model itself lies in no module that a path such as `h.3`
names. Where no statement assigns such operators they go where their operands are made, the last of them; with no
such operand, where their result is used. There they get the indices and the order of that neighbour.
"""

from dataclasses import replace

from ssdsl.model.graph import Operator
from ssdsl.plan.errors.place import PlacedBeside
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Clock, Index, Order, TaskSet, Timed
from ssdsl.text.diagnostic import Diagnostic


def place_beside(facts: Facts, model: ModelIndex) -> list[Diagnostic]:
    """Place the operators of modules that have modules in them, as far as no statement does; a warning says so."""
    parents = model.graph.parents
    left = [op for op in model.ordered(model.compute) if op.name not in facts.placements and op.path in parents]
    hosts: dict[str, str] = {}
    if not facts.placements or not left:
        return []
    makers, readers = model.graph.makers, model.graph.readers
    for op in left:
        given = [makers[o.value].name for o in op.inputs if o.value in makers]
        _adopt(facts, model, hosts, op, sorted(given, key=model.position.__getitem__, reverse=True))
    for op in reversed(left):
        if op.name not in hosts:
            users = [reader.name for o in op.outputs for reader in readers.get(o.value, ())]
            _adopt(facts, model, hosts, op, sorted(users, key=model.position.__getitem__))
    if not hosts:
        return []
    _join_orders(facts, hosts)
    return [_said(facts, model, hosts)]


def _adopt(facts: Facts, model: ModelIndex, hosts: dict[str, str], op: Operator, neighbours: list[str]) -> None:
    """Put an operator where the first of its neighbours is that has a place."""
    beside = next((n for n in neighbours if n in facts.placements), None)
    if beside is None:
        return
    hosts[op.name] = hosts.get(beside, beside)
    facts.placements[op.name] = facts.placements[beside]
    for index in facts.indices.get(beside, ()):
        at = _same_dim(op, model.operators[beside].dims[index.dim].cls)
        if at is not None and facts.index(op.name, index.name) is None:
            facts.add_index(op.name, Index(index.name, index.count, at, index.span, index.at))


def _same_dim(op: Operator, cls: int) -> int | None:
    return next((at for at, dim in enumerate(op.dims) if dim.cls == cls and not dim.fixed), None)


def _join_orders(facts: Facts, hosts: dict[str, str]) -> None:
    """What is ordered is ordered with the operators that were put beside it."""
    joined: dict[frozenset[str], frozenset[str]] = {}

    def join(tasks: TaskSet) -> TaskSet:
        operators = tasks.operators
        if operators not in joined:
            joined[operators] = operators | {op for op, host in hosts.items() if host in operators}
        return replace(tasks, operators=joined[operators])

    def order(o: Order) -> Order:
        return replace(o, before=join(o.before), after=join(o.after))

    def row(timed: Timed) -> Timed:
        return replace(timed, tasks=join(timed.tasks))

    facts.orders[:] = map(order, facts.orders)
    facts.clocks[:] = [Clock(tuple(map(row, clock.rows)), clock.span, clock.called) for clock in facts.clocks]


def _said(facts: Facts, model: ModelIndex, hosts: dict[str, str]) -> PlacedBeside:
    placed = model.ordered(hosts)
    first = placed[0]
    modules = tuple(dict.fromkeys(op.module for op in placed))
    kinds = tuple(dict.fromkeys(op.kind for op in placed))
    devices = str(facts.placements[first.name])
    return PlacedBeside(None, len(placed), modules, kinds, first.own_path, devices)
