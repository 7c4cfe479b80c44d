"""Tasks and their order: data flow, the plan's `order` statements, and what they leave open completed
deterministically.

The tasks are placed one by one at the earliest time at which their inputs and devices are ready (list scheduling with
nominal times: a forward costs its operations, a backward twice that). The result is one global order; each role runs
its part of it, which is why no two roles can wait for each other.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import networkx

from ssdsl.lower.errors import OrderCycle
from ssdsl.lower.layout import REPLICATE, Layout, Shape, Submesh
from ssdsl.lower.schedule import Block, Role, Task, TimeIndex, Transfer
from ssdsl.lower.transfer import plan_move
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Order, Phase, Plan, TaskSet
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


@dataclass(slots=True)
class Node:
    """A task, or a barrier between tasks (`task` is None)."""

    task: Task | None
    roles: tuple[int, ...]
    time: int
    before: int = 0
    after: list[int] = field(default_factory=list)


class TaskGraph:
    """All tasks with what must come before what."""

    def __init__(
        self, plan: Plan, blocks: tuple[Block, ...], transfers: tuple[Transfer, ...], roles: list[Role]
    ) -> None:
        self.plan, self.blocks, self.transfers, self.roles = plan, blocks, transfers, roles
        self.nodes: list[Node] = []
        self.number: dict[Task, int] = {}
        self.spans: dict[tuple[int, int], Span] = {}
        self._paths = {o.name: o.path for o in plan.graph.operators}
        self._roles_of = {s: _roles_in(s, roles) for s in {b.submesh for b in blocks}}
        costs = _costs(plan.graph, blocks)
        for block in blocks:
            for at in coordinates(block.time):
                self._add(Task(block.number, at, FORWARD), self._roles_of[block.submesh], costs[block.number])
                if block.has_backward:
                    self._add(Task(block.number, at, BACKWARD), self._roles_of[block.submesh], 2 * costs[block.number])
        self._transfers()
        self._data_flow()
        self._orders()

    def _add(self, task: Task | None, roles: tuple[int, ...], time: int) -> int:
        self.nodes.append(Node(task, roles, time))
        if task is not None:
            self.number[task] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def edge(self, a: int, b: int, span: Span | None = None) -> None:
        if a != b:
            self.nodes[a].after.append(b)
            self.nodes[b].before += 1
            if span is not None:
                self.spans.setdefault((a, b), span)

    def _transfers(self) -> None:
        for t in self.transfers:
            both = tuple(sorted({*self._roles_of[t.source], *self._roles_of[t.target]}))
            for at in coordinates(t.time):
                self._add(Task(t.producer, at, FORWARD, t.number), both, 0)
                if t.backward is not None and self.blocks[t.consumer].has_backward:
                    self._add(Task(t.consumer, at, BACKWARD, t.number), both, 0)

    def _data_flow(self) -> None:
        moved = {(t.value, t.consumer): t for t in self.transfers}
        for block in self.blocks:
            for task in self._tasks(block, BACKWARD):
                self.edge(self.number[Task(block.number, task.coordinate, FORWARD)], self.number[task])
            for given in block.inputs:
                producer = self.blocks[given.producer]
                transfer = moved.get((given.value, block.number))
                joined = {c.index for c in given.combines}
                for a, b in matching(producer.time, block.time, joined):
                    self._flow(producer, block, a, b, transfer, given.differentiable)

    def _flow(
        self,
        producer: Block,
        consumer: Block,
        a: tuple[int, ...],
        b: tuple[int, ...],
        transfer: Transfer | None,
        differentiable: bool,
    ) -> None:
        back = differentiable and producer.has_backward and consumer.has_backward
        first, last = self.number[Task(producer.number, a, FORWARD)], self.number[Task(consumer.number, b, FORWARD)]
        if transfer is None:
            self.edge(first, last)
        else:
            move = self.number[Task(producer.number, a, FORWARD, transfer.number)]
            self.edge(first, move)
            self.edge(move, last)
        if back:
            first = self.number[Task(consumer.number, b, BACKWARD)]
            last = self.number[Task(producer.number, a, BACKWARD)]
            if transfer is None:
                self.edge(first, last)
            else:
                move = self.number[Task(consumer.number, a, BACKWARD, transfer.number)]
                self.edge(first, move)
                self.edge(move, last)

    def _tasks(self, block: Block, phase: Phase) -> list[Task]:
        if phase is BACKWARD and not block.has_backward:
            return []
        return [Task(block.number, at, phase) for at in coordinates(block.time)]

    # -- order statements --------------------------------------------------------------------------------------------

    def _orders(self) -> None:
        block_of = {name: b for b in self.blocks for name in b.operators}
        members: dict[frozenset[str], list[Block]] = {}
        for order in self.plan.orders:
            for tasks in (order.before, order.after):
                if tasks.operators not in members:
                    found = {block_of[o].number: block_of[o] for o in tasks.operators if o in block_of}
                    members[tasks.operators] = [found[n] for n in sorted(found)]
            self._order(order, members[order.before.operators], members[order.after.operators])

    def _order(self, order: Order, before: list[Block], after: list[Block]) -> None:
        for first, then in _phases(order):
            groups: dict[object, tuple[list[Task], list[Task]]] = {}
            pairs = itertools.product(_kinds(before, order.before), _kinds(after, order.after))
            for (left, left_blocks), (right, right_blocks) in pairs:
                fixed = {n for n, _ in (*order.before.fixed, *order.after.fixed)}
                shared = [n for n in left if n in right and n not in fixed]
                for side, (names, blocks, tasks, phase) in enumerate(
                    ((left, left_blocks, order.before, first), (right, right_blocks, order.after, then))
                ):
                    for task in self._selected(blocks, tasks, phase):
                        key = (left, right, tuple(task.coordinate[names.index(n)] for n in shared))
                        groups.setdefault(key, ([], []))[side].append(task)
            for a, b in groups.values():
                self._barrier(a, b, order.span)

    def _selected(self, blocks: list[Block], tasks: TaskSet, phase: Phase) -> Iterator[Task]:
        for block in blocks:
            names = [t.name for t in block.time]
            fixed = [(names.index(n), v) for n, v in tasks.fixed if n in names]
            for task in self._tasks(block, phase):
                if all(task.coordinate[at] == v for at, v in fixed):
                    yield task

    def _barrier(self, a: list[Task], b: list[Task], span: Span) -> None:
        self._signals(a, b, span)
        if len(a) * len(b) <= len(a) + len(b):
            for x, y in itertools.product(a, b):
                self.edge(self.number[x], self.number[y], span)
        elif a and b:
            barrier = self._add(None, (), 0)
            for x in a:
                self.edge(self.number[x], barrier, span)
            for y in b:
                self.edge(barrier, self.number[y], span)

    def _signals(self, before: list[Task], after: list[Task], span: Span) -> None:
        """Where no device runs both tasks, the devices of the earlier one tell those of the later one."""
        for x, y in itertools.product(before, after):
            a, b = self.blocks[x.block].submesh, self.blocks[y.block].submesh
            if set(self._roles_of[a]) & set(self._roles_of[b]) or self._flows(self.number[x], self.number[y]):
                continue
            shape = Shape(((1,),))
            whole = [Layout((REPLICATE,) * len(s.axes)) for s in (a, b)]
            move = plan_move(whole[0], a, whole[1], b, shape)
            number = len(self.transfers)
            self.transfers += (Transfer(number, "", x.block, y.block, a, b, move, None, "uint8", ()),)
            both = tuple(sorted({*self._roles_of[a], *self._roles_of[b]}))
            signal = self._add(Task(x.block, (), FORWARD, number), both, 0)
            self.edge(self.number[x], signal, span)
            self.edge(signal, self.number[y], span)

    def _flows(self, x: int, y: int) -> bool:
        """Whether one task already waits for what the other sends."""
        return any(y == after or y in self.nodes[after].after for after in self.nodes[x].after)

    # -- the schedule ------------------------------------------------------------------------------------------------

    def sequence(self) -> list[int]:
        """All nodes in one order that respects every edge. Raises PlanError with the statements of a circle."""
        free = [0] * len(self.roles)
        ready = [0] * len(self.nodes)
        left = [n.before for n in self.nodes]
        queue = [(0, _priority(node), k) for k, node in enumerate(self.nodes) if not left[k]]
        heapq.heapify(queue)
        done: list[int] = []
        while queue:
            start, priority, k = heapq.heappop(queue)
            node = self.nodes[k]
            possible = max([ready[k], *(free[r] for r in node.roles)] if node.time else [ready[k]])
            if possible > start:
                heapq.heappush(queue, (possible, priority, k))
                continue
            done.append(k)
            end = start + node.time
            if node.time:
                for r in node.roles:
                    free[r] = end
            for after in node.after:
                ready[after] = max(ready[after], end)
                left[after] -= 1
                if not left[after]:
                    heapq.heappush(queue, (ready[after], _priority(self.nodes[after]), after))
        if len(done) < len(self.nodes):
            raise PlanError(self._circle(set(range(len(self.nodes))) - set(done)))
        return done

    def _circle(self, stuck: set[int]) -> OrderCycle:
        """One circle among the nodes that never became ready."""
        waits = [(k, after) for k in sorted(stuck) for after in self.nodes[k].after if after in stuck]
        edges = [(a, b) for a, b, *_ in networkx.find_cycle(networkx.DiGraph(waits))]
        circle = [a for a, _ in edges]
        spans = list(dict.fromkeys(self.spans[e] for e in edges if e in self.spans))
        names = [self.describe(t) for k in circle if (t := self.nodes[k].task) is not None]
        shown = names if len(names) <= 8 else [*names[:7], f"... {len(names) - 7} more"]
        return OrderCycle(spans[0] if spans else None, " -> ".join([*shown, names[0]]), tuple(spans[1:4]))

    def describe(self, task: Task) -> str:
        """A task in words: `h.0.ln_1 ... h.3.mlp.fwd[m = 2]`."""
        block = self.blocks[task.block]
        inside = ", ".join(f"{t.name} = {c}" for t, c in zip(block.time, task.coordinate, strict=False))
        what = "send " if task.transfer is not None else ""
        paths = [p for name in (block.operators[0], block.operators[-1]) if (p := self._paths[name])]
        where = " ... ".join(dict.fromkeys(paths)) or "the loss"
        return f"{what}{where}.{task.phase}{f'[{inside}]' if inside else ''}"

    def by_role(self) -> tuple[Role, ...]:
        """The roles with their tasks in order."""
        tasks: list[list[Task]] = [[] for _ in self.roles]
        for k in self.sequence():
            if (task := self.nodes[k].task) is not None:
                for r in self.nodes[k].roles:
                    tasks[r].append(task)
        return tuple(Role(r.name, r.mesh, r.fixed, tuple(t)) for r, t in zip(self.roles, tasks, strict=True))


def _priority(node: Node) -> tuple[int, int, tuple[int, ...], int]:
    """Among tasks that can start at once: transfers, then backward before forward, then lower indices."""
    if node.task is None or node.task.transfer is not None:
        return (0, 0, (), node.task.transfer or 0 if node.task else 0)
    return (1, int(node.task.phase is FORWARD), node.task.coordinate, node.task.block)


def _phases(order: Order) -> list[tuple[Phase, Phase]]:
    both = (FORWARD, BACKWARD)
    if order.before.phase is None and order.after.phase is None:
        return [(p, p) for p in both]
    befores = both if order.before.phase is None else (order.before.phase,)
    afters = both if order.after.phase is None else (order.after.phase,)
    return list(itertools.product(befores, afters))


def _kinds(blocks: list[Block], tasks: TaskSet) -> list[tuple[tuple[str, ...], list[Block]]]:
    """Blocks by the names of their indices in time; those that lack an index that the set fixes are not in it."""
    in_time = {n for b in blocks for n in (t.name for t in b.time)}
    kinds: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks:
        names = tuple(t.name for t in block.time)
        if all(n in names for n, _ in tasks.fixed if n in in_time):
            kinds.setdefault(names, []).append(block)
    return list(kinds.items())


def coordinates(time: Iterable[TimeIndex]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(t.count) for t in time))


def matching(
    before: tuple[TimeIndex, ...], after: tuple[TimeIndex, ...], joined: set[str]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs of coordinates that agree on the indices that both have, but for those whose parts are joined."""
    names = [t.name for t in after]
    shared = [(k, names.index(t.name)) for k, t in enumerate(before) if t.name in names and t.name not in joined]
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for b in coordinates(after):
        groups.setdefault(tuple(b[k] for _, k in shared), []).append(b)
    for a in coordinates(before):
        for b in groups.get(tuple(a[k] for k, _ in shared), ()):
            yield a, b


def _costs(graph: Graph, blocks: tuple[Block, ...]) -> list[int]:
    flops = {o.name: o.flops for o in graph.operators}
    return [1 + sum(flops[o] for o in b.operators) // b.submesh.size for b in blocks]


def roles_of(plan: Plan, submeshes: Iterable[Submesh]) -> list[Role]:
    """One role for each combination of coordinates on the axes that some placement fixes."""
    used = list(dict.fromkeys(submeshes))
    roles = []
    for mesh in plan.meshes:
        fixed = [a for a, _ in mesh.axes if any(s.mesh == mesh and a in dict(s.fixed) for s in used)]
        sizes = dict(mesh.axes)
        for at in itertools.product(*(range(sizes[a]) for a in fixed)):
            held = tuple(zip(fixed, at, strict=True))
            name = "_".join([mesh.name, *(f"{a}{c}" for a, c in held)])
            roles.append(Role(name, mesh.name, held, ()))
    return roles


def _roles_in(submesh: Submesh, roles: list[Role]) -> tuple[int, ...]:
    held = dict(submesh.fixed)
    return tuple(
        k for k, r in enumerate(roles) if r.mesh == submesh.mesh.name and all(held.get(a, c) == c for a, c in r.fixed)
    )
