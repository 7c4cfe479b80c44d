"""Turns the plan's `order` statements into edges between tasks. `schedule_tasks` decides the order of all other
tasks."""

import itertools
from collections.abc import Iterator, Sequence

from ssdsl.ir.action import Compute
from ssdsl.ir.comm import Signal
from ssdsl.ir.function import Function
from ssdsl.ir.layout import REPLICATE, Layout, Shape
from ssdsl.lower.conversions.transfer import plan_move
from ssdsl.lower.tasks.graph import BACKWARD, FORWARD, TaskGraph
from ssdsl.lower.tasks.task import Carry
from ssdsl.plan.plan import ClockOrder, Order, Phase, TaskSet
from ssdsl.text.source import Span

Groups = tuple[list[Compute], list[Compute]]


def apply_orders(graph: TaskGraph) -> None:
    """Adds the edges of all `order` statements, and signals where one relates tasks that share no device."""
    members = _members(graph)
    for order in graph.plan.orders:
        for before, after in _related(graph, order, members):
            if {*before} != {*after} or len(before) > 1:  # a single task is not ordered against itself
                _state(graph, before, after, span=order.called or order.span)
            _signals(graph, before, after, order.span)
            _barrier(graph, before, after, order.span)
    for clock in graph.plan.clocks:
        _sort(graph, clock, members)


def _members(graph: TaskGraph) -> dict[int, list[Function]]:
    """The functions of each set of operators that the plan orders."""
    members: dict[int, list[Function]] = {tasks.number: [] for tasks in graph.plan.ordered()}
    for function in graph.functions if members else ():
        sets = frozenset[int]().union(*(graph.plan.of(op.operator).sets for op in function.operators()))
        for number in sets & members.keys():
            members[number].append(function)
    return members


# -- order A -> B ----------------------------------------------------------------------------------------------------


def _related(graph: TaskGraph, order: Order, members: dict[int, list[Function]]) -> Iterator[Groups]:
    """Yields groups of tasks of `before` and of `after` that are related: all tasks of a group agree on every index
    that both sides have and neither fixes."""
    before, after = members[order.before.number], members[order.after.number]
    for first, then in _phases(order):
        groups: dict[object, Groups] = {}
        pairs = itertools.product(_kinds(before, order.before), _kinds(after, order.after))
        for (left, left_functions), (right, right_functions) in pairs:
            fixed = {n for n, _ in (*order.before.fixed, *order.after.fixed)}
            shared = [n for n in left if n in right and n not in fixed]
            for side, (names, functions, tasks, phase) in enumerate(
                ((left, left_functions, order.before, first), (right, right_functions, order.after, then))
            ):
                for task in _selected(graph, functions, tasks, phase):
                    # tasks are related if their coordinates along the shared indices are equal: one group for each
                    key = (left, right, tuple(task.at[names.index(n)] for n in shared))
                    groups.setdefault(key, ([], []))[side].append(task)
        yield from groups.values()


def _phases(order: Order) -> list[tuple[Phase, Phase]]:
    both = (FORWARD, BACKWARD)
    if order.before.phase is None and order.after.phase is None:
        return [(p, p) for p in both]
    befores = both if order.before.phase is None else (order.before.phase,)
    afters = both if order.after.phase is None else (order.after.phase,)
    return list(itertools.product(befores, afters))


def _kinds(functions: list[Function], tasks: TaskSet) -> list[tuple[tuple[str, ...], list[Function]]]:
    """Functions by the names of their indices in time, without those that lack an index which the set fixes and another
    function has."""
    in_time = {n for b in functions for n in (t.name for t in b.time)}
    kinds: dict[tuple[str, ...], list[Function]] = {}
    for function in functions:
        names = tuple(t.name for t in function.time)
        if all(n in names for n, _ in tasks.fixed if n in in_time):
            kinds.setdefault(names, []).append(function)
    return list(kinds.items())


def _selected(graph: TaskGraph, functions: Sequence[Function], tasks: TaskSet, phase: Phase) -> Iterator[Compute]:
    for function in functions:
        names = [t.name for t in function.time]
        fixed = [(names.index(n), v) for n, v in tasks.fixed if n in names]
        yield from graph.tasks(function, phase, dict(fixed))


# -- order by clock --------------------------------------------------------------------------------------------------


def _sort(graph: TaskGraph, clock: ClockOrder, members: dict[int, list[Function]]) -> None:
    """Adds edges: on each role, the tasks of a row of the clock come before those of the next row."""
    latest: dict[int, list[Compute]] = {}  # by role
    named: dict[
        tuple[int, tuple[str, ...]], list[Function]
    ] = {}  # by the number of a set and the indices that it fixes
    done: set[tuple[tuple[Compute, ...], tuple[Compute, ...]]] = set()
    for row in clock.rows:
        key = row.tasks.number, tuple(name for name, _ in row.tasks.fixed)
        if (functions := named.get(key)) is None:
            functions = named[key] = [b for _, found in _kinds(members[key[0]], row.tasks) for b in found]
        phases = (FORWARD, BACKWARD) if row.tasks.phase is None else (row.tasks.phase,)
        tasks = [t for phase in phases for t in _selected(graph, functions, row.tasks, phase)]
        _state(graph, tasks, span=clock.called or row.span)
        here: dict[int, list[Compute]] = {}
        for task in tasks:
            for role in graph.nodes[graph.number[task]].roles:
                here.setdefault(role, []).append(task)
        for role, those in here.items():
            pair = (tuple(latest.get(role, ())), tuple(those))
            if pair not in done:
                done.add(pair)
                _barrier(graph, *pair, row.span)
            latest[role] = those


# -- edges -----------------------------------------------------------------------------------------------------------


def _state(graph: TaskGraph, *groups: list[Compute], span: Span) -> None:
    """Records, if no group is empty, that these tasks owe their place to the statement at `span`."""
    if all(groups):
        for task in itertools.chain(*groups):
            graph.stated.setdefault(task, {})[span] = None


def _barrier(graph: TaskGraph, before: Sequence[Compute], after: Sequence[Compute], span: Span) -> None:
    """Adds edges from all tasks of `before` to all of `after`, through one extra node where that takes fewer edges."""
    a, b = ([graph.number[t] for t in tasks] for tasks in (before, after))
    if len(a) * len(b) <= len(a) + len(b):
        for x, y in itertools.product(a, b):
            graph.edge(x, y, span)
    elif a and b:
        barrier = graph.add(None, (), 0)
        for x in a:
            graph.edge(x, barrier, span)
        for y in b:
            graph.edge(barrier, y, span)


def _signals(graph: TaskGraph, before: list[Compute], after: list[Compute], span: Span) -> None:
    """Adds a signal for each pair of tasks that share no device and no message: the devices of the earlier task tell
    those of the later one."""
    for x, y in itertools.product(before, after):
        a, b = graph.functions[x.function].submesh, graph.functions[y.function].submesh
        here, there = graph.members[a], graph.members[b]
        if not set(here).isdisjoint(there) or _flows(graph, graph.number[x], graph.number[y]):
            continue
        whole = [Layout((REPLICATE,) * len(s.axes)) for s in (a, b)]
        move = plan_move(whole[0], a, whole[1], b, Shape(((1,),)))
        number = len(graph.messages)
        graph.messages += (Signal(number, x.function, y.function, a, b, move),)
        signal = graph.add(Carry(number, (), False), tuple(sorted({*here, *there})), 0)
        graph.edge(graph.number[x], signal, span)
        graph.edge(signal, graph.number[y], span)


def _flows(graph: TaskGraph, x: int, y: int) -> bool:
    """Whether task y already waits for task x, directly or for a message of it."""
    return any(y == after or y in graph.nodes[after].after for after in graph.nodes[x].after)
