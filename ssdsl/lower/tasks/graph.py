"""The task graph: all tasks of a program, with edges for their data dependencies."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ssdsl.ir.action import Compute
from ssdsl.ir.comm import Message, Transfer, functions_of
from ssdsl.ir.function import Function, FunctionInput
from ssdsl.ir.layout import Submesh
from ssdsl.ir.parts import BACK_PHASES, coordinates, parts_read
from ssdsl.ir.program import Members, Role
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Phase, Plan
from ssdsl.text.source import Span

FORWARD, BACKWARD, DGRAD, WGRAD = Phase.FORWARD, Phase.BACKWARD, Phase.DGRAD, Phase.WGRAD


@dataclass(slots=True)
class TaskNode:
    """A task, or a barrier between tasks (`task` is None). `time` is nominal; `before` counts the nodes that must come
    first, `after` are the numbers of those that come later."""

    task: Task | None
    roles: tuple[int, ...]
    time: int
    before: int = 0
    after: list[int] = field(default_factory=list)


class TaskGraph:
    """All tasks, with an edge from each task to those that must come later. `spans` are the statements behind edges;
    `stated` are those, as lines of the plan itself, that decide a task's position."""

    def __init__(self, lowering: Lowering, roles: list[Role]) -> None:
        self.plan, self.functions, self.roles = lowering.plan, lowering.functions, roles
        self.messages: tuple[Message, ...] = lowering.messages
        self.nodes: list[TaskNode] = []
        self.number: dict[Task, int] = {}
        self.spans: dict[tuple[int, int], Span] = {}
        self.stated: dict[Compute, dict[Span, None]] = {}
        self.members = Members(roles)
        self._operators = lowering.graph.by_name
        self._first: dict[tuple[int, Phase], int] = {}  # a function's first node in a phase; the others follow
        self.carried: dict[tuple[int, bool], range] = {}  # the nodes of a message's parts, or of their gradients
        self._places = [{at: k for k, at in enumerate(coordinates(f.time))} for f in self.functions]
        costs = _costs(lowering)
        for function in self.functions:
            for phase in (FORWARD, *BACK_PHASES[function.backward]):
                time = costs[function.number] * (2 if phase is BACKWARD else 1)
                self._first[function.number, phase] = len(self.nodes)
                for task in self.tasks(function, phase):
                    self.add(task, self.members[function.submesh], time)
        for message in self.messages:
            assert isinstance(message, Transfer)
            self._carries(message)
        self._data_flow()

    def add(self, task: Task | None, roles: tuple[int, ...], time: int) -> int:
        """Adds a node, and returns its number."""
        self.nodes.append(TaskNode(task, roles, time))
        if task is not None:
            self.number[task] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def edge(self, a: int, b: int, span: Span | None = None) -> None:
        """Puts a node before another; `span` is the statement that demands it."""
        if a != b:
            self.nodes[a].after.append(b)
            self.nodes[b].before += 1
            if span is not None:
                self.spans.setdefault((a, b), span)

    def tasks(self, function: Function, phase: Phase, fixed: Mapping[int, int] = MappingProxyType({})) -> list[Compute]:
        """A function's tasks in a phase, where `fixed` gives the values of some of its indices, by their positions. For
        a function in halves, BACKWARD stands for both halves."""
        back = BACK_PHASES[function.backward]
        phases = back if phase is BACKWARD else (phase,)
        inside = [
            [c for c in (fixed.get(k, 0),) if c < t.parts] if k in fixed else range(t.parts)
            for k, t in enumerate(function.time)
        ]
        return [
            Compute(function.number, at, p)
            for p in phases
            if p in (FORWARD, *back)
            for at in itertools.product(*inside)
        ]

    def describe(self, task: Task) -> str:
        """A task in words: `h.0.ln_1 ... h.3.mlp.fwd[m = 2] on gpus[pp = 0]`."""
        message = self.messages[task.message] if isinstance(task, Carry) else None
        if isinstance(task, Compute):
            function, phase = self.functions[task.function], task.phase
        else:
            assert message is not None
            function = self.functions[functions_of(message, task.gradient)[0]]
            phase = BACKWARD if task.gradient else FORWARD
        inside = ", ".join(f"{t.name} = {c}" for t, c in zip(function.time, task.at, strict=False))
        operators = [op.operator for op in function.operators()]
        paths = [p for name in (operators[0], operators[-1]) if (p := self._operators[name].path)]
        where = " ... ".join(dict.fromkeys(paths)) or 'model["."]'
        send = "send " if message is not None else ""
        return f"{send}{where}.{phase}{f'[{inside}]' if inside else ''} on {function.submesh}"

    def operator_of(self, name: str) -> Operator:
        """An operator of the model by its name."""
        return self._operators[name]

    def _carries(self, transfer: Transfer) -> None:
        both = tuple(sorted({*self.members[transfer.source], *self.members[transfer.target]}))
        ways = (False,) if transfer.backward is None else (False, True)
        first = len(self.nodes)
        for at in coordinates(transfer.time):
            for gradient in ways:
                self.add(Carry(transfer.number, at, gradient), both, 0)
        for k, gradient in enumerate(ways):
            self.carried[transfer.number, gradient] = range(first + k, len(self.nodes), len(ways))

    def _data_flow(self) -> None:
        for function in self.functions:
            for one, then in itertools.pairwise((FORWARD, *BACK_PHASES[function.backward])):
                first, after = self._first[function.number, one], self._first[function.number, then]
                for k in range(len(self._places[function.number])):
                    self.edge(first + k, after + k)
            for given in function.inputs:
                self._flow(self.functions[given.producer], function, given)

    def _flow(self, producer: Function, consumer: Function, given: FunctionInput) -> None:
        """Adds edges from each part of the producer to the parts of the consumer that read it, and for gradients
        back."""
        made, read = self._first[producer.number, FORWARD], self._first[consumer.number, FORWARD]
        there = None if given.message is None else self.carried[given.message, False]
        back = None if given.message is None or not given.gradient else self.carried[given.message, True]
        if given.gradient:
            given_back = self._first[consumer.number, BACK_PHASES[consumer.backward][0]]
            taken = self._first[producer.number, BACK_PHASES[producer.backward][0]]
        parts, readers = self._places[producer.number], self._places[consumer.number]
        for a, b in parts_read(given, consumer.time):
            x, y = parts[a], readers[b]
            self._chain(made + x, None if there is None else there[x], read + y)
            if given.gradient:
                self._chain(given_back + y, None if back is None else back[x], taken + x)

    def _chain(self, first: int, between: int | None, last: int) -> None:
        if between is None:
            self.edge(first, last)
        else:
            self.edge(first, between)
            self.edge(between, last)


def roles_of(plan: Plan, submeshes: Sequence[Submesh]) -> list[Role]:
    """One role, without actions so far, for each combination of coordinates on the axes that some placement fixes."""
    used = list(dict.fromkeys(submeshes))
    roles = []
    for mesh in plan.meshes:
        fixed = [a for a, _ in mesh.axes if any(s.mesh == mesh and a in dict(s.fixed) for s in used)]
        sizes = dict(mesh.axes)
        for at in itertools.product(*(range(sizes[a]) for a in fixed)):
            held = tuple(zip(fixed, at, strict=True))
            name = "_".join([mesh.name, *(f"{a}{c}" for a, c in held)])
            roles.append(Role(name, Submesh(mesh, held), ()))
    return roles


def _costs(lowering: Lowering) -> list[int]:
    flops = {o.name: o.flops for o in lowering.graph.operators}
    return [1 + sum(flops[o.operator] for o in f.operators()) // f.submesh.size for f in lowering.functions]
