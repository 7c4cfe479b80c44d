"""The graph of tasks: all of them, with what data flow puts before what."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ssdsl.lower.layout import Submesh
from ssdsl.lower.schedule import Block, Role, Task, TimeIndex, Transfer
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Phase, Plan
from ssdsl.text.source import Span

FORWARD, BACKWARD, DGRAD, WGRAD = Phase.FORWARD, Phase.BACKWARD, Phase.DGRAD, Phase.WGRAD


@dataclass(slots=True)
class Node:
    """A task, or a barrier between tasks (`task` is None). `time` is nominal."""

    task: Task | None
    roles: tuple[int, ...]
    time: int
    before: int = 0
    after: list[int] = field(default_factory=list)


class TaskGraph:
    """All tasks with what must come before what. `spans` are the statements behind edges, `stated` those behind a
    task's place in the order, as lines of the plan itself."""

    def __init__(
        self, plan: Plan, blocks: tuple[Block, ...], transfers: tuple[Transfer, ...], roles: list[Role]
    ) -> None:
        self.plan, self.blocks, self.transfers, self.roles = plan, blocks, transfers, roles
        self.nodes: list[Node] = []
        self.number: dict[Task, int] = {}
        self.spans: dict[tuple[int, int], Span] = {}
        self.stated: dict[Task, dict[Span, None]] = {}
        self.roles_of = {s: tuple(k for k, r in enumerate(roles) if r.is_in(s)) for s in {b.submesh for b in blocks}}
        self._paths = {o.name: o.path for o in plan.graph.operators}
        costs = _costs(plan.graph, blocks)
        for block in blocks:
            for phase in (FORWARD, *back_phases(block)):
                time = costs[block.number] * (2 if phase is BACKWARD else 1)
                for task in self.tasks(block, phase):
                    self.add(task, self.roles_of[block.submesh], time)
        self._add_transfers()
        self._data_flow()

    def add(self, task: Task | None, roles: tuple[int, ...], time: int) -> int:
        """The number of a new node."""
        self.nodes.append(Node(task, roles, time))
        if task is not None:
            self.number[task] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def edge(self, a: int, b: int, span: Span | None = None) -> None:
        """Puts a node before another; `span` is the statement that says so."""
        if a != b:
            self.nodes[a].after.append(b)
            self.nodes[b].before += 1
            if span is not None:
                self.spans.setdefault((a, b), span)

    def tasks(self, block: Block, phase: Phase, fixed: Mapping[int, int] = MappingProxyType({})) -> list[Task]:
        """A block's tasks in a phase, with these values of its indices; the whole backward of a block in halves is
        both of them."""
        phases = back_phases(block) if phase is BACKWARD else (phase,)
        exist = (FORWARD, *back_phases(block))
        inside = [
            [c for c in (fixed.get(k, 0),) if c < t.count] if k in fixed else range(t.count)
            for k, t in enumerate(block.time)
        ]
        return [Task(block.number, at, p) for p in phases if p in exist for at in itertools.product(*inside)]

    def describe(self, task: Task) -> str:
        """A task in words: `h.0.ln_1 ... h.3.mlp.fwd[m = 2]`."""
        block = self.blocks[task.block]
        inside = ", ".join(f"{t.name} = {c}" for t, c in zip(block.time, task.coordinate, strict=False))
        what = "send " if task.transfer is not None else ""
        paths = [p for name in (block.operators[0], block.operators[-1]) if (p := self._paths[name])]
        where = " ... ".join(dict.fromkeys(paths)) or "the loss"
        return f"{what}{where}.{task.phase}{f'[{inside}]' if inside else ''}"

    def _add_transfers(self) -> None:
        for t in self.transfers:
            both = tuple(sorted({*self.roles_of[t.source], *self.roles_of[t.target]}))
            for at in coordinates(t.time):
                self.add(Task(t.producer, at, FORWARD, t.number), both, 0)
                if t.backward is not None and self.blocks[t.consumer].has_backward:
                    self.add(Task(t.consumer, at, BACKWARD, t.number), both, 0)

    def _data_flow(self) -> None:
        moved = {(t.value, t.consumer): t for t in self.transfers}
        for block in self.blocks:
            for one, then in itertools.pairwise((FORWARD, *back_phases(block))):
                for at in coordinates(block.time):
                    self.edge(self.number[Task(block.number, at, one)], self.number[Task(block.number, at, then)])
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
        first, last = Task(producer.number, a, FORWARD), Task(consumer.number, b, FORWARD)
        self._chain(first, _carried(transfer, producer, a, FORWARD), last)
        if differentiable and producer.has_backward and consumer.has_backward:
            first = Task(consumer.number, b, back_phases(consumer)[0])
            last = Task(producer.number, a, back_phases(producer)[0])
            self._chain(first, _carried(transfer, consumer, a, BACKWARD), last)

    def _chain(self, *tasks: Task | None) -> None:
        for a, b in itertools.pairwise(t for t in tasks if t is not None):
            self.edge(self.number[a], self.number[b])


def _carried(transfer: Transfer | None, sender: Block, at: tuple[int, ...], phase: Phase) -> Task | None:
    return Task(sender.number, at, phase, transfer.number) if transfer is not None else None


def back_phases(block: Block) -> tuple[Phase, ...]:
    """The phases of a block's backward: one, or the two halves, of which the first hands gradients on."""
    if not block.has_backward:
        return ()
    if not block.halves:
        return (BACKWARD,)
    return (DGRAD, WGRAD) if block.weights else (DGRAD,)


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


def _costs(graph: Graph, blocks: tuple[Block, ...]) -> list[int]:
    flops = {o.name: o.flops for o in graph.operators}
    return [1 + sum(flops[o] for o in b.operators) // b.submesh.size for b in blocks]
