"""The task graph: every task with its data dependencies."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ssdsl.ir.action import At, Compute
from ssdsl.ir.comm import Message, Transfer
from ssdsl.ir.function import Function, Input
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

    def __init__(self, lowering: Lowering, roles: list[Role]) -> None:
        self.plan, self.functions, self.roles = lowering.plan, lowering.functions, roles
        self.messages: tuple[Message, ...] = lowering.messages
        self.nodes: list[Node] = []
        self.number: dict[Task, int] = {}
        self.spans: dict[tuple[int, int], Span] = {}
        self.stated: dict[Compute, dict[Span, None]] = {}
        self.members = Members(roles)
        self._operators = lowering.graph.by_name
        costs = _costs(lowering)
        for function in self.functions:
            for phase in (FORWARD, *BACK_PHASES[function.backward]):
                time = costs[function.number] * (2 if phase is BACKWARD else 1)
                for task in self.tasks(function, phase):
                    self.add(task, self.members[function.submesh], time)
        for message in self.messages:
            assert isinstance(message, Transfer)
            self._carries(message)
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

    def tasks(self, function: Function, phase: Phase, fixed: Mapping[int, int] = MappingProxyType({})) -> list[Compute]:
        """A function's tasks in a phase, with these values of its indices; the whole backward of one in halves is both
        of them."""
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
            function = self.functions[message.consumer if task.gradient else message.producer]
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
        for at in coordinates(transfer.time):
            self.add(Carry(transfer.number, at, False), both, 0)
            if transfer.backward is not None:
                self.add(Carry(transfer.number, at, True), both, 0)

    def _data_flow(self) -> None:
        for function in self.functions:
            for one, then in itertools.pairwise((FORWARD, *BACK_PHASES[function.backward])):
                for at in coordinates(function.time):
                    self._edge(Compute(function.number, at, one), Compute(function.number, at, then))
            for given in function.inputs:
                producer = self.functions[given.producer]
                for a, b in parts_read(given, function.time):
                    self._flow(producer, function, a, b, given)

    def _flow(self, producer: Function, consumer: Function, a: At, b: At, given: Input) -> None:
        """Data of part `a` of the producer flows to part `b` of the consumer, and its gradient back."""
        there: list[Task] = [] if given.message is None else [Carry(given.message, a, False)]
        back: list[Task] = [] if given.message is None else [Carry(given.message, a, True)]
        chain = [Compute(producer.number, a, FORWARD), *there, Compute(consumer.number, b, FORWARD)]
        for one, then in itertools.pairwise(chain):
            self._edge(one, then)
        if given.gradient:
            first = Compute(consumer.number, b, BACK_PHASES[consumer.backward][0])
            last = Compute(producer.number, a, BACK_PHASES[producer.backward][0])
            for one, then in itertools.pairwise([first, *back, last]):
                self._edge(one, then)

    def _edge(self, a: Task, b: Task) -> None:
        self.edge(self.number[a], self.number[b])


def roles_of(plan: Plan, submeshes: Sequence[Submesh]) -> list[Role]:
    """One role, still without actions, for each combination of coordinates on the axes that some placement fixes."""
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
