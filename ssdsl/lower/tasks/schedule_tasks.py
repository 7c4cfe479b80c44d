"""Orders the tasks of each role: by the plan, and deterministically where it leaves the order open.

The tasks are placed one by one at the earliest time at which their inputs and devices are ready (list scheduling with
nominal times: a forward costs its operations, a backward twice that; a value that may be in flight between two tasks
of the same devices travels as long as the longer of them takes). Then the messages get their places among them
(`place_messages.py`). The result is one global order, and each role runs its part of it: that is why no two roles can
wait for each other.
"""

import heapq

from ssdsl.ir.program import Compute
from ssdsl.lower.stages import Carry, Formed, Scheduled, Task, grown
from ssdsl.lower.tasks.explain_cycle import explain_cycle
from ssdsl.lower.tasks.graph import FORWARD, WGRAD, TaskGraph, TaskNode, apply_orders, roles_of
from ssdsl.lower.tasks.place_messages import place_messages
from ssdsl.lower.tasks.run_again import run_again_late
from ssdsl.text.diagnostic import PlanError

Priority = tuple[int, int, tuple[int, ...], int]
Key = tuple[int, Priority, int]  # the earliest time at which a node starts, its priority and its number


def schedule_tasks(lowering: Formed) -> Scheduled:
    """Adds the roles with their tasks in order, and the signals that the plan's orders need.

    Of two stages in two micro-batches:

        + role gpus_pp1 on gpus[pp = 1]
        +   receive message0[m = 0]
        +   receive message0[m = 1]
        +   forward block1[m = 0]
        +   backward block1[m = 0]
        +   send gradient of message0[m = 0]
        +   forward block1[m = 1]
        ...

    Raises PlanError for a dependency cycle, with the statements on it.
    """
    graph = TaskGraph(lowering, roles_of(lowering.plan, tuple(lowering.submeshes.values())))
    apply_orders(graph)
    run_again_late(graph)
    tasks: list[list[Task]] = [[] for _ in graph.roles]
    for k in place_messages(graph, _place(graph)):
        if (task := graph.nodes[k].task) is not None:
            for role in graph.nodes[k].roles:
                tasks[role].append(task)
    return grown(
        lowering,
        Scheduled,
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
    agenda = _Agenda(free)
    for k, node in enumerate(nodes):
        if not left[k]:
            agenda.add(0, k, node)
    done: list[int] = []
    while (found := agenda.next()) is not None:
        start, k = found
        node = nodes[k]
        end = start + node.time
        done.append(k)
        if node.time:
            for r in node.roles:
                free[r] = end
        for after in node.after:
            arrives = end + graph.arrives[k, after] if (k, after) in graph.arrives else end
            if ready[after] < arrives:
                ready[after] = arrives
            left[after] -= 1
            if not left[after]:
                agenda.add(ready[after], after, nodes[after])
    if len(done) < len(nodes):
        raise PlanError(explain_cycle(graph, set(range(len(nodes))) - set(done)))
    return done


class _Line:
    """Nodes on the same roles. Those of `waiting` start as soon as these are free, those of `coming` not before their
    inputs are there. `posted` is the entry of the line in `_Agenda`."""

    def __init__(self, roles: tuple[int, ...]) -> None:
        self.roles = roles
        self.coming: list[Key] = []
        self.waiting: list[tuple[Priority, int]] = []
        self.posted: Key | None = None

    def first(self, free: list[int]) -> Key | None:
        """The key of the node that comes first, where roles are free from these times on."""
        now = max([free[r] for r in self.roles], default=0)
        while self.coming and self.coming[0][0] <= now:
            heapq.heappush(self.waiting, heapq.heappop(self.coming)[1:])
        if self.waiting:
            return now, *self.waiting[0]
        return self.coming[0] if self.coming else None

    def take(self) -> None:
        """Removes the node that comes first."""
        if self.waiting:
            heapq.heappop(self.waiting)
        else:
            heapq.heappop(self.coming)


class _Agenda:
    """Nodes that can be placed, of which `next` takes the one that starts first, then by `_priority`.

    `free` says when each role is free, and only grows. Nodes on the same roles are in one line, so that a role that
    gets busy touches no node that waits for it. `_heads` has an entry for the first node of each line. When its roles
    have become busy, the entry is too early, and is made again.
    """

    def __init__(self, free: list[int]) -> None:
        self._free = free
        self._lines: dict[tuple[int, ...], _Line] = {}
        self._heads: list[tuple[Key, _Line]] = []

    def add(self, ready: int, k: int, node: TaskNode) -> None:
        """Adds a node whose inputs are there from `ready` on."""
        roles = node.roles if node.time else ()
        if (line := self._lines.get(roles)) is None:
            line = self._lines[roles] = _Line(roles)
        key = ready, _priority(node), k
        heapq.heappush(line.coming, key)
        self._post(line, key)

    def next(self) -> tuple[int, int] | None:
        """Takes the next node: the time when it starts, and its number."""
        while self._heads:
            key, line = heapq.heappop(self._heads)
            if key != line.posted:
                continue  # the line was posted again since, with an earlier key
            line.posted = None
            if (first := line.first(self._free)) == key:
                line.take()
                self._post(line, line.first(self._free))
                return key[0], key[2]
            self._post(line, first)
        return None

    def _post(self, line: _Line, key: Key | None) -> None:
        if key is not None and (line.posted is None or key < line.posted):
            line.posted = key
            heapq.heappush(self._heads, (key, line))


def _priority(node: TaskNode) -> Priority:
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
