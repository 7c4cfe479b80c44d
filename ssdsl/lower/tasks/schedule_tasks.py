"""Orders the tasks of each role: by the plan, and deterministically where it leaves the order open.

The tasks are placed one by one at the earliest time at which their inputs and devices are ready (list scheduling with
nominal times: a forward costs its operations, a backward twice that). Then the messages get their places among them
(`place_messages.py`). The result is one global order, and each role runs its part of it: that is why no two roles can
wait for each other.
"""

import heapq
from dataclasses import replace

from ssdsl.ir.action import Compute
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.apply_orders import apply_orders
from ssdsl.lower.tasks.explain_cycle import explain_cycle
from ssdsl.lower.tasks.graph import FORWARD, WGRAD, TaskGraph, TaskNode, roles_of
from ssdsl.lower.tasks.place_messages import place_messages
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.text.diagnostic import PlanError


def schedule_tasks(lowering: Lowering) -> Lowering:
    """Adds the roles with their tasks in order, and the signals that the plan's orders need.

    Raises PlanError for a dependency cycle, with the statements on it.
    """
    graph = TaskGraph(lowering, roles_of(lowering.plan, tuple(lowering.submeshes.values())))
    apply_orders(graph)
    tasks: list[list[Task]] = [[] for _ in graph.roles]
    for k in place_messages(graph, _place(graph)):
        if (task := graph.nodes[k].task) is not None:
            for role in graph.nodes[k].roles:
                tasks[role].append(task)
    return replace(
        lowering,
        roles=tuple(graph.roles),
        messages=graph.messages,
        tasks=tuple(map(tuple, tasks)),
        stated={task: tuple(spans) for task, spans in graph.stated.items()},
    )


def _place(graph: TaskGraph) -> list[int]:
    """The numbers of all nodes in an order that respects every edge. Raises PlanError for a cycle."""
    nodes = graph.nodes
    free = [0] * len(graph.roles)
    ready = [0] * len(nodes)
    left = [n.before for n in nodes]
    queue = [(0, _priority(node), k) for k, node in enumerate(nodes) if not left[k]]
    heapq.heapify(queue)
    done: list[int] = []
    while queue:
        start, priority, k = heapq.heappop(queue)
        node = nodes[k]
        possible = max([ready[k], *(free[r] for r in node.roles)] if node.time else [ready[k]])
        if possible > start:  # its roles are busy until then: it waits in the queue, and others may go first
            heapq.heappush(queue, (possible, priority, k))
            continue
        end = start + node.time
        done.append(k)
        if node.time:
            for r in node.roles:
                free[r] = end
        for after in node.after:
            ready[after] = max(ready[after], end)
            left[after] -= 1
            if not left[after]:
                heapq.heappush(queue, (ready[after], _priority(nodes[after]), after))
    if len(done) < len(nodes):
        raise PlanError(explain_cycle(graph, set(range(len(nodes))) - set(done)))
    return done


def _priority(node: TaskNode) -> tuple[int, int, tuple[int, ...], int]:
    """The key that orders nodes which can start at the same time: transfers first, then backward, forward, gradients of
    weights; then lower coordinates."""
    match node.task:
        case None:
            return (0, 0, (), 0)
        case Carry():
            return (0, 0, (), node.task.message)
        case Compute():
            rank = {FORWARD: 1, WGRAD: 2}.get(node.task.phase, 0)
            return (1, rank, node.task.at, node.task.function)
