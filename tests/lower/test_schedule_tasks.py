"""The order of tasks that the plan leaves open: at each moment the task that can start first, then by priority."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ssdsl.ir.program import Compute
from ssdsl.lower.tasks.graph import BACKWARD, FORWARD, WGRAD, TaskNode
from ssdsl.lower.tasks.schedule_tasks import _place, _priority


def some_graph(seed: int) -> Any:
    """A graph without cycles: stages on one role or several, barriers, many tasks that are ready at once."""
    draw = random.Random(seed)
    roles = draw.randint(1, 4)
    nodes: list[TaskNode] = []
    for k in range(draw.randint(1, 60)):
        task = None
        if draw.random() < 0.8:
            task = Compute(draw.randint(0, 3), (k,), draw.choice((FORWARD, BACKWARD, WGRAD)))
        on = tuple(sorted(draw.sample(range(roles), draw.randint(1, roles))))
        nodes.append(TaskNode(task, on, 0 if task is None else draw.randint(1, 5)))
    names = draw.sample(range(len(nodes)), len(nodes))
    for k, a in enumerate(names):
        for b in draw.sample(names[k + 1 :], min(draw.randint(0, 2), len(nodes) - k - 1)):
            nodes[a].after.append(b)
            nodes[b].before += 1
    return SimpleNamespace(arrives={}, nodes=nodes, roles=range(roles))


def looked_through(graph: Any) -> list[int]:
    """The same order by its definition: every node that could be next is looked at."""
    nodes, free, ready = graph.nodes, [0] * len(graph.roles), [0] * len(graph.nodes)
    left, done = [n.before for n in nodes], list[int]()

    def key(k: int) -> Any:
        busy = [free[r] for r in nodes[k].roles] if nodes[k].time else []
        return max([ready[k], *busy]), _priority(nodes[k]), k

    while possible := [k for k in range(len(nodes)) if not left[k] and k not in done]:
        k = min(possible, key=key)
        end = key(k)[0] + nodes[k].time
        done.append(k)
        for r in nodes[k].roles if nodes[k].time else ():
            free[r] = end
        for after in nodes[k].after:
            ready[after] = max(ready[after], end)
            left[after] -= 1
    return done


@pytest.mark.parametrize("seed", range(20))
def test_the_next_task_is_the_one_that_starts_first(seed: int) -> None:
    for k in range(10):
        graph = some_graph(10 * seed + k)
        assert _place(graph) == looked_through(graph)


def test_tasks_that_wait_for_one_role_are_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan leaves open in which order a role runs its 2,000 micro-batches: all could begin at once."""
    import heapq

    popped = 0

    def counted(heap: list[Any], pop: Any = heapq.heappop) -> Any:
        nonlocal popped
        popped += 1
        return pop(heap)

    monkeypatch.setattr(heapq, "heappop", counted)
    nodes = [TaskNode(Compute(0, (k,), FORWARD), (0,), 3) for k in range(2000)]
    assert _place(SimpleNamespace(arrives={}, nodes=nodes, roles=range(1))) == [*range(2000)]  # type: ignore[arg-type]
    assert popped < 5 * len(nodes)
