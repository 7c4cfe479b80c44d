"""Gives each message its place among the tasks of its roles: all roles follow one global order.

A GPU may hold up all that was started after a message until that has arrived: streams share hardware queues, and to
load a kernel or to free memory it waits for everything that runs. So a role starts a message, be it to send or to
receive, only once nothing that the message still needs comes later on that role. This holds if tasks and messages
have one global order, each after what it needs, and every role follows it: even roles that did nothing until a message
has arrived would reach their ends.

The order is by nominal time: a task counts when it ends, a message when it leaves. So a receive stands before the task
during which its value arrives, and the transfer overlaps with that task.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from ssdsl.ir.comm import Signal, Transfer, functions_of
from ssdsl.ir.function import ahead_of
from ssdsl.ir.program import Compute
from ssdsl.lower.stages import Carry
from ssdsl.lower.tasks.graph import TaskGraph


def place_messages(graph: TaskGraph, placed: Sequence[int]) -> list[int]:
    """The numbers of all nodes in their global order. The tasks of each role keep the order of `placed`."""
    tasks = [k for k in placed if isinstance(graph.nodes[k].task, Compute)]
    _keep(graph, tasks)
    _bound_buffers(graph, {k: place for place, k in enumerate(tasks)})
    return _by_time(graph)


def _keep(graph: TaskGraph, tasks: Iterable[int]) -> None:
    """Adds edges between neighbours on each role."""
    last: dict[int, int] = {}
    for k in tasks:
        for role in graph.nodes[k].roles:
            if role in last:
                graph.edge(last[role], k)
            last[role] = k


def _bound_buffers(graph: TaskGraph, place: dict[int, int]) -> None:
    """Adds edges so that a message starts once at most `prefetch` tasks before its reader have not read theirs yet.

    This makes no cycle for messages from one role to one other: each may stand right before its own reader. A message
    to several roles is not bounded, as one of them may need it before another has read what came earlier.
    """
    ahead = ahead_of(graph.plan, graph.functions)
    for (number, gradient), nodes in graph.carried.items():
        transfer = graph.messages[number]
        assert isinstance(transfer, Transfer)
        senders, receivers = graph.members.ends(transfer, gradient)
        if len(senders) > 1 or len(receivers) > 1 or senders == receivers:
            continue
        reads: dict[int, list[int]] = {}  # by the first task that reads them
        for k in nodes:
            readers = filter(place.__contains__, graph.nodes[k].after)
            reads.setdefault(min(readers, key=place.__getitem__), []).append(k)
        first, apart = sorted(reads, key=place.__getitem__), ahead(functions_of(transfer, gradient)[1]) + 1
        for earlier, later in zip(first, first[apart:], strict=False):
            for k in reads[later]:
                graph.edge(earlier, k)


def _by_time(graph: TaskGraph) -> list[int]:
    """All nodes by their nominal time, each after those that it needs. What happens at one time is ordered along the
    flow of data: forward by the numbers of functions, then backward against them; each message after its task."""
    nodes, functions = graph.nodes, len(graph.functions)
    # A node's time is its nominal end times `width`, plus its rank among what happens at that time: with 2 functions
    # (width 5) the forward of function 1 that ends at 3 has 3 * 5 + 1, its backward, if it ends at 4, has 4 * 5 + 3.
    width = 2 * functions + 1
    time = [0] * len(nodes)  # at first the latest time of what a node needs, then its own
    left = [node.before for node in nodes]
    ready = deque(k for k, before in enumerate(left) if not before)
    order: list[int] = []
    while ready:
        order.append(k := ready.popleft())
        task = nodes[k].task
        if isinstance(task, Compute):
            rank = task.function if task.phase.is_forward else 2 * functions - task.function
            time[k] = (time[k] // width + nodes[k].time) * width + rank
        own = time[k]
        for after in nodes[k].after:
            if time[after] < own:
                time[after] = own
            left[after] -= 1
            if not left[after]:
                ready.append(after)
    assert len(order) == len(nodes), "the edges that were added make no cycle"
    for k, node in enumerate(nodes):
        if isinstance(node.task, Carry) and isinstance(graph.messages[node.task.message], Signal):
            (reader,) = node.after  # waits for a signal where it is received: not before the task that needs it
            time[k] = max(time[k], (time[reader] // width - nodes[reader].time) * width)
    return sorted(order, key=time.__getitem__)
