"""Puts what runs again behind the backwards that return its gradients, so that its activations are there briefly.

A task that runs again needs nothing but what was kept, so it could run as early as its forward. Where an `order` places
such tasks, they run as the plan says; others wait until the gradients of all results of their region have arrived: of
two regions, each of a layer, the second has run backward before the first runs again.
"""

from collections import defaultdict

from ssdsl.ir.function import Function, FunctionInput
from ssdsl.ir.parts import parts_read
from ssdsl.lower.tasks.graph import AGAIN, TaskGraph, members_of, selected
from ssdsl.plan.plan import Order

Readers = defaultdict[int, list[tuple[Function, FunctionInput]]]  # of a function's outputs, by its number


def run_again_late(graph: TaskGraph) -> None:
    """Adds these edges. Those from a region's inside go through a node for each task, which stands for the arrival of
    all gradients behind it."""
    repeated = [f for f in graph.functions if f.again is not None]
    if not repeated:
        return
    placed, readers = _placed(graph), _readers(graph)
    arrived: dict[int, list[int]] = {}  # by function, the nodes at which the gradients behind its tasks are there
    for function in repeated:
        again = graph.nodes_of(function.number, AGAIN)
        arrived[function.number] = [graph.add(None, (), 0) for _ in again]
        for node, k in zip(arrived[function.number], again, strict=True):
            if k not in placed:
                graph.edge(node, k)
    before = {number: _before(graph, number) for number in dict.fromkeys(f.again for f in repeated)}
    for function in repeated:
        for reader, given in readers[function.number]:
            is_inside = reader.again == function.again
            if not is_inside and (reader.returns is None or reader.number in before[function.again]):
                continue  # no gradient, or one that this region must run again for
            for a, b in parts_read(given, reader.time):
                here, there = graph.place(function.number, a), graph.place(reader.number, b)
                if is_inside:
                    graph.edge(arrived[reader.number][there], arrived[function.number][here])
                elif given.message is not None:
                    graph.edge(graph.carried[given.message, True][here], arrived[function.number][here])
                else:
                    assert reader.returns is not None
                    back = graph.nodes_of(reader.number, reader.returns)[there]
                    graph.edge(back, arrived[function.number][here])


def _placed(graph: TaskGraph) -> set[int]:
    """The nodes of what runs again that some order places."""
    members, plan = members_of(graph), graph.plan
    orders = (order for order in plan.orders if not _holds_anyway(order))
    named = [*(tasks for order in orders for tasks in (order.before, order.after))]
    named += [row.tasks for clock in plan.clocks for row in clock.rows]
    return {k for tasks in named if tasks.phase is AGAIN for k in selected(graph, members[tasks.number], tasks, AGAIN)}


def _holds_anyway(order: Order) -> bool:
    """Whether an order says no more than that tasks run again before their own backward."""
    before, after = order.before, order.after
    is_back = after.phase is not None and not after.phase.is_forward
    return (before.number, before.fixed) == (after.number, after.fixed) and is_back


def _readers(graph: TaskGraph) -> Readers:
    found = Readers(list)
    for reader in graph.functions:
        for given in (i for i in reader.inputs if i.gradient):
            found[given.producer].append((reader, given))
    return found


def _before(graph: TaskGraph, number: int | None) -> set[int]:
    """The functions from which those that run again with this number follow."""
    found = set[int]()
    agenda = [f.number for f in graph.functions if f.again == number]
    while agenda:
        near = {i.producer for i in graph.functions[agenda.pop()].inputs} - found
        found |= near
        agenda += near
    return found
