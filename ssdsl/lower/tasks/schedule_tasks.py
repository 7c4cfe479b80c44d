"""The order in which each role runs its tasks: what the plan leaves open, completed deterministically.

The tasks are placed one by one at the earliest time at which their inputs and devices are ready (list scheduling with
nominal times: a forward costs its operations, a backward twice that). The result is one global order; each role runs
its part of it, which is why no two roles can wait for each other.
"""

import heapq
from dataclasses import replace

import networkx

from ssdsl.ir.action import At, Compute
from ssdsl.ir.function import Concat, Function, Op, Sum, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.lower.errors import OrderCycle, Whole
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.apply_orders import apply_orders
from ssdsl.lower.tasks.graph import FORWARD, WGRAD, Node, TaskGraph, roles_of
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.text.diagnostic import InternalError, PlanError


def schedule_tasks(lowering: Lowering) -> Lowering:
    """Adds the roles with their tasks in order, and the signals that the plan's orders need.

    Raises PlanError with the statements of a dependency cycle.
    """
    graph = TaskGraph(lowering, roles_of(lowering.plan, tuple(lowering.submeshes.values())))
    apply_orders(graph)
    tasks: list[list[Task]] = [[] for _ in graph.roles]
    for k in _place(graph):
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
    """All nodes in one order that respects every edge."""
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
        if possible > start:
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
        raise PlanError(_cycle(graph, set(range(len(nodes))) - set(done)))
    return done


def _priority(node: Node) -> tuple[int, int, tuple[int, ...], int]:
    """Among tasks that can start at once: transfers, then backward before forward before the gradients of weights,
    then lower indices."""
    match node.task:
        case None:
            return (0, 0, (), 0)
        case Carry():
            return (0, 0, (), node.task.message)
        case Compute():
            rank = {FORWARD: 1, WGRAD: 2}.get(node.task.phase, 0)
            return (1, rank, node.task.at, node.task.function)


def _cycle(graph: TaskGraph, stuck: set[int]) -> OrderCycle:
    """One cycle among the nodes that never became ready."""
    waits = [(k, after) for k in sorted(stuck) for after in graph.nodes[k].after if after in stuck]
    edges = [(a, b) for a, b, *_ in networkx.find_cycle(networkx.DiGraph(waits))]
    cycle = [a for a, _ in edges]
    spans = list(dict.fromkeys(graph.spans[e] for e in edges if e in graph.spans))
    names = [graph.describe(t) for k in cycle if (t := graph.nodes[k].task) is not None]
    shown = names if len(names) <= 8 else [*names[:7], f"... {len(names) - 7} more"]
    text = "\n-> ".join([*shown, names[0]])
    return OrderCycle(spans[0] if spans else None, text, tuple(spans[1:4]), _whole(graph, cycle))


def _whole(graph: TaskGraph, cycle: list[int]) -> Whole | None:
    """The operator on a cycle that waits for all parts along an index: it reads a value whose parts become one, or all
    parts read what it makes, and so its gradient is a sum over them."""
    tasks = [t for k in cycle if isinstance(t := graph.nodes[k].task, Compute)]
    pairs = []
    for before, task in zip([*tasks[-1:], *tasks], tasks, strict=False):
        first, then = graph.functions[before.function], graph.functions[task.function]
        if (before.phase is FORWARD) is (task.phase is FORWARD):
            pairs.append((first, then, task.at) if task.phase is FORWARD else (then, first, before.at))
    found = (find(graph, *pair) for find in (_joins, _read_by_all) for pair in pairs)
    return next((whole for whole in found if whole is not None), None)


def _joins(graph: TaskGraph, producer: Function, reader: Function, at: At) -> Whole | None:
    """The operator of a function that reads all parts of what another makes, or for its part `at` some of them."""
    for given in reader.inputs:
        if given.producer == producer.number and given.merges:
            merge = given.merges[0]
            operator = graph.operator_of(_reader(reader, given.var.name))
            where = operator.kind, operator.path, operator.source
            index, is_split = merge.index, merge.index in reader.time
            if isinstance(merge, Concat) and merge.reads is not None:
                part = at[[t.name for t in reader.time].index(index.name)]
                beside = merge.read_by(part)
                return Whole(*where, index.name, index.parts, sums=False, split=True, beside=beside, part=part)
            return Whole(*where, index.name, index.parts, isinstance(merge, Sum), is_split)
    return None


def _read_by_all(graph: TaskGraph, producer: Function, reader: Function, _: At) -> Whole | None:
    """The operator of a function whose result all parts of another one read; its gradient is a sum over them."""
    late = [index for index in reader.time if index not in producer.time]
    for given in reader.inputs:
        if given.producer == producer.number and given.gradient and late:
            name = next(o.name for o in producer.outputs if o.name.value == given.var.name.value)  # sent or not
            operator = graph.operator_of(_maker(producer, name))
            where = operator.kind, operator.path, operator.source
            return Whole(*where, late[0].name, late[0].parts, sums=True, split=False, backward=True)
    return None


def _maker(function: Function, value: Name) -> str:
    """The operator that a value comes from, in whatever layout."""
    for instr in reversed(list(function.body())):
        if value in (v.name for v in results_of(instr)):
            if isinstance(instr, Op):
                return instr.operator
            value = instr.source
    raise InternalError(f"function {function.name} does not compute its output {value}")


def _reader(function: Function, value: Name) -> str:
    """The first operator of a function that reads a value, in whatever layout."""
    known = {value}
    for instr in function.body():
        if not known.isdisjoint(reads_of(instr)):
            if isinstance(instr, Op):
                return instr.operator
            known.update(v.name for v in results_of(instr))
    raise InternalError(f"function {function.name} does not read its input {value}")
