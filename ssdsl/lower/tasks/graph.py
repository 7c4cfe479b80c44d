"""The task graph: all tasks of a program, with edges for their data dependencies and for the plan's `order` statements.

`schedule_tasks` decides the order of all tasks that no edge relates.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ssdsl.ir.comm import Message, Signal, Transfer, functions_of
from ssdsl.ir.function import Function, FunctionInput
from ssdsl.ir.layout import REPLICATE, Layout, Shape, Submesh
from ssdsl.ir.parts import coordinates, parts_read
from ssdsl.ir.program import At, Compute, Members, Role
from ssdsl.lower.conversions.transfer import plan_move
from ssdsl.lower.stages import Carry, Formed, Task
from ssdsl.lower.tasks.start_across_tasks import travelling
from ssdsl.model.graph import Graph, Operator
from ssdsl.plan.plan import ClockOrder, Order, Phase, Plan, TaskSet
from ssdsl.text.source import Span

FORWARD, AGAIN, BACKWARD, DGRAD, WGRAD = Phase


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
    `stated` are those, as lines of the plan itself, that decide a task's position. `arrives` is the time for which a
    value travels along an edge between tasks of the same devices, where it may: nominally as long as the longer of the
    two, so that a task of another part comes between them."""

    def __init__(self, lowering: Formed, roles: list[Role]) -> None:
        self.lowering, self.plan, self.functions, self.roles = lowering, lowering.plan, lowering.functions, roles
        self.messages: tuple[Message, ...] = lowering.messages
        self.nodes: list[TaskNode] = []
        self.spans: dict[tuple[int, int], Span] = {}
        self.stated: dict[Compute, dict[Span, None]] = {}
        self.arrives: dict[tuple[int, int], int] = {}
        self.members = Members(roles)
        self._operators = lowering.graph.by_name
        self._first: dict[tuple[int, Phase], int] = {}  # a function's first node in a phase; the others follow
        self.carried: dict[tuple[int, bool], range] = {}  # the nodes of a message's parts, or of their gradients
        self._places = [{at: k for k, at in enumerate(coordinates(f.time))} for f in self.functions]
        costs = _costs(lowering)
        for function, places in zip(self.functions, self._places, strict=True):
            for phase in function.phases:
                time = costs[function.number] * (2 if phase is BACKWARD else 1)
                self._first[function.number, phase] = len(self.nodes)
                where = self.members[function.submesh]
                self.nodes += [TaskNode(Compute(function.number, at, phase), where, time) for at in places]
        for message in self.messages:
            assert isinstance(message, Transfer)
            self._carries(message)
        self._travelling = travelling(lowering)
        self._data_flow()
        self._statistics(lowering.graph)

    def add(self, task: Task | None, roles: tuple[int, ...], time: int) -> int:
        """Adds a node, and returns its number."""
        self.nodes.append(TaskNode(task, roles, time))
        return len(self.nodes) - 1

    def edge(self, a: int, b: int, span: Span | None = None) -> None:
        """Puts a node before another; `span` is the statement that demands it."""
        if a != b:
            self.nodes[a].after.append(b)
            self.nodes[b].before += 1
            if span is not None:
                self.spans.setdefault((a, b), span)

    def selected(self, function: Function, phase: Phase, fixed: Mapping[str, int]) -> list[int]:
        """The nodes of a function's tasks in a phase, where `fixed` gives the values of some of its indices. For a
        function in halves, BACKWARD stands for both halves."""
        wanted = (BACKWARD, DGRAD, WGRAD) if phase is BACKWARD else (phase,)
        phases = [p for p in wanted if p in function.phases]
        some = [(n,) if (n := fixed.get(t.name)) is not None else range(t.parts) for t in function.time]
        places = self._places[function.number]
        found = [places[at] for at in itertools.product(*some) if at in places]
        return [self._first[function.number, p] + k for p in phases for k in found]

    def nodes_of(self, function: int, phase: Phase) -> range:
        """The nodes of a function's tasks in a phase, in the order of their coordinates; the function has this
        phase."""
        first = self._first[function, phase]
        return range(first, first + len(self._places[function]))

    def place(self, function: int, at: At) -> int:
        """The position of a task among those of its function."""
        return self._places[function][at]

    def task(self, number: int) -> Compute:
        """The task of a node that computes."""
        task = self.nodes[number].task
        assert isinstance(task, Compute)
        return task

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
        where = (" ... ".join(dict.fromkeys(paths)) or 'model["."]') + self.plan.of(operators[0]).selected
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
            for one, then in itertools.pairwise(function.phases):
                first, after = self._first[function.number, one], self._first[function.number, then]
                for k in range(len(self._places[function.number])):
                    self.edge(first + k, after + k)
            for given in function.inputs:
                self._flow(self.functions[given.producer], function, given)

    def _statistics(self, graph: Graph) -> None:
        """Running statistics are changed in place, by one batch norm after another: the tasks of their users that have
        the same part of them run in the order of the model."""
        homes = {op.operator: f.number for f in self.functions for op in f.operators()} if graph.running else {}
        for buffer in sorted(graph.running):
            users = dict.fromkeys(homes[name] for name in graph.users_of_changed[buffer] if name in homes)
            for one, then in itertools.pairwise(map(self.functions.__getitem__, users)):
                for x, y in self._same_part(one, then):
                    self.edge(self._first[one.number, FORWARD] + x, self._first[then.number, FORWARD] + y)

    def _same_part(self, one: Function, other: Function) -> Iterator[tuple[int, int]]:
        """The places of tasks of two functions that have the same part of a buffer, which all their indices cut; all
        pairs if their indices differ."""
        places, others = self._places[one.number], self._places[other.number]
        here, there = ([(t.name, t.parts) for t in f.time] for f in (one, other))
        if sorted(here) != sorted(there):
            yield from itertools.product(places.values(), others.values())
            return
        order = [here.index(index) for index in there]
        for at, x in places.items():
            yield x, others[tuple(at[k] for k in order)]

    def _flow(self, producer: Function, consumer: Function, given: FunctionInput) -> None:
        """Adds edges from each part of the producer to the parts of the consumer that read it, and for gradients
        back."""
        made, read = self._first[producer.number, FORWARD], self._first[consumer.number, FORWARD]
        there = None if given.message is None else self.carried[given.message, False]
        back = None if given.message is None or not given.gradient else self.carried[given.message, True]
        if given.gradient:
            assert consumer.returns is not None and producer.returns is not None
            given_back = self._first[consumer.number, consumer.returns]
            taken = self._first[producer.number, producer.returns]
        parts, readers = self._places[producer.number], self._places[consumer.number]
        for a, b in parts_read(given, consumer.time):
            x, y = parts[a], readers[b]
            self._chain(made + x, None if there is None else there[x], read + y)
            if given.gradient:
                self._chain(given_back + y, None if back is None else back[x], taken + x)
                if (producer.number, consumer.number, True) in self._travelling:
                    self._arrive(given_back + y, taken + x)
            if (producer.number, consumer.number, False) in self._travelling:
                self._arrive(made + x, read + y)
            if consumer.is_made_again(given, producer):
                self.edge(self._first[producer.number, AGAIN] + x, self._first[consumer.number, AGAIN] + y)

    def _arrive(self, first: int, last: int) -> None:
        self.arrives[first, last] = max(self.nodes[first].time, self.nodes[last].time)

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


def _costs(lowering: Formed) -> list[int]:
    flops = {o.name: o.flops for o in lowering.graph.operators}
    return [1 + sum(flops[o.operator] for o in f.operators()) // f.submesh.size for f in lowering.functions]


# -- the plan's orders -------------------------------------------------------------------------------------------------


Groups = tuple[list[int], list[int]]  # nodes of tasks


def apply_orders(graph: TaskGraph) -> None:
    """Adds the edges of all `order` statements, and signals where one relates tasks that share no device."""
    members = members_of(graph)
    for order in graph.plan.orders:
        for before, after in _related(graph, order, members):
            if {*before} != {*after} or len(before) > 1:  # a single task is not ordered against itself
                _state(graph, before, after, span=order.called or order.span)
            _signals(graph, before, after, order.span)
            _barrier(graph, before, after, order.span)
    for clock in graph.plan.clocks:
        _sort(graph, clock, members)


def members_of(graph: TaskGraph) -> dict[int, list[Function]]:
    """The functions of each set of operators that the plan orders."""
    members: dict[int, list[Function]] = {tasks.number: [] for tasks in graph.plan.ordered()}
    for function in graph.functions if members else ():
        sets = frozenset[int]().union(*(graph.plan.of(op.operator).sets for op in function.operators()))
        for number in sets & members.keys():
            members[number].append(function)
    return members


# -- order A -> B ----------------------------------------------------------------------------------------------------


def _related(graph: TaskGraph, order: Order, members: dict[int, list[Function]]) -> Iterator[Groups]:
    """Yields groups of tasks of `before` and of `after` that are related: all tasks of a group agree on every index
    that both sides have and neither fixes."""
    before, after = members[order.before.number], members[order.after.number]
    for first, then in _phases(order):
        groups: dict[object, Groups] = {}
        pairs = itertools.product(_kinds(before, order.before), _kinds(after, order.after))
        for (left, left_functions), (right, right_functions) in pairs:
            fixed = {n for n, _ in (*order.before.fixed, *order.after.fixed)}
            shared = [n for n in left if n in right and n not in fixed]
            for side, (names, functions, tasks, phase) in enumerate(
                ((left, left_functions, order.before, first), (right, right_functions, order.after, then))
            ):
                for k in selected(graph, functions, tasks, phase):
                    # tasks are related if their coordinates along the shared indices are equal: one group for each
                    key = (left, right, tuple(graph.task(k).at[names.index(n)] for n in shared))
                    groups.setdefault(key, ([], []))[side].append(k)
        yield from groups.values()


def _phases(order: Order) -> list[tuple[Phase, Phase]]:
    both = (FORWARD, BACKWARD)
    if order.before.phase is None and order.after.phase is None:
        return [(p, p) for p in both]
    befores = both if order.before.phase is None else (order.before.phase,)
    afters = both if order.after.phase is None else (order.after.phase,)
    return list(itertools.product(befores, afters))


def _kinds(functions: list[Function], tasks: TaskSet) -> list[tuple[tuple[str, ...], list[Function]]]:
    """Functions by the names of their indices in time, without those that lack an index which the set fixes and another
    function has."""
    in_time = {n for b in functions for n in (t.name for t in b.time)}
    kinds: dict[tuple[str, ...], list[Function]] = {}
    for function in functions:
        names = tuple(t.name for t in function.time)
        if all(n in names for n, _ in tasks.fixed if n in in_time):
            kinds.setdefault(names, []).append(function)
    return list(kinds.items())


def selected(graph: TaskGraph, functions: Sequence[Function], tasks: TaskSet, phase: Phase) -> list[int]:
    """The nodes of those tasks of a set in a phase that are tasks of some functions."""
    fixed = dict(tasks.fixed)
    return [k for function in functions for k in graph.selected(function, phase, fixed)]


# -- order by clock --------------------------------------------------------------------------------------------------


def _sort(graph: TaskGraph, clock: ClockOrder, members: dict[int, list[Function]]) -> None:
    """Adds edges: on each role, the tasks of a row of the clock come before those of the next row."""
    latest: dict[int, list[int]] = {}  # by role, the nodes of tasks
    named: dict[
        tuple[int, tuple[str, ...]], list[Function]
    ] = {}  # by the number of a set and the indices that it fixes
    done: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for row in clock.rows:
        key = row.tasks.number, tuple(name for name, _ in row.tasks.fixed)
        if (functions := named.get(key)) is None:
            functions = named[key] = [b for _, found in _kinds(members[key[0]], row.tasks) for b in found]
        phases = (FORWARD, BACKWARD) if row.tasks.phase is None else (row.tasks.phase,)
        tasks = [k for phase in phases for k in selected(graph, functions, row.tasks, phase)]
        _state(graph, tasks, span=clock.called or row.span)
        here: dict[int, list[int]] = {}
        for k in tasks:
            for role in graph.nodes[k].roles:
                here.setdefault(role, []).append(k)
        for role, those in here.items():
            pair = tuple(latest.get(role, ())), tuple(those)
            if pair not in done:
                done.add(pair)
                _barrier(graph, *pair, row.span)
            latest[role] = those


# -- edges -----------------------------------------------------------------------------------------------------------


def _state(graph: TaskGraph, *groups: list[int], span: Span) -> None:
    """Records, if no group is empty, that these tasks owe their place to the statement at `span`."""
    if all(groups):
        for k in itertools.chain(*groups):
            graph.stated.setdefault(graph.task(k), {})[span] = None


def _barrier(graph: TaskGraph, before: Sequence[int], after: Sequence[int], span: Span) -> None:
    """Adds edges from all nodes of `before` to all of `after`, through one extra node where that takes fewer edges."""
    if len(before) * len(after) <= len(before) + len(after):
        for x, y in itertools.product(before, after):
            graph.edge(x, y, span)
    elif before and after:
        barrier = graph.add(None, (), 0)
        for x in before:
            graph.edge(x, barrier, span)
        for y in after:
            graph.edge(barrier, y, span)


def _signals(graph: TaskGraph, before: list[int], after: list[int], span: Span) -> None:
    """Adds a signal for each pair of tasks that share no device and no message: the devices of the earlier task tell
    those of the later one."""
    for x, y in itertools.product(before, after):
        first, then = (graph.functions[graph.task(k).function] for k in (x, y))
        a, b = first.submesh, then.submesh
        here, there = graph.members[a], graph.members[b]
        if not set(here).isdisjoint(there) or _flows(graph, x, y):
            continue
        whole = [Layout((REPLICATE,) * len(s.axes)) for s in (a, b)]
        move = plan_move(whole[0], a, whole[1], b, Shape(((1,),)))
        number = len(graph.messages)
        graph.messages += (Signal(number, first.number, then.number, a, b, move),)
        signal = graph.add(Carry(number, (), False), tuple(sorted({*here, *there})), 0)
        graph.edge(x, signal, span)
        graph.edge(signal, y, span)


def _flows(graph: TaskGraph, x: int, y: int) -> bool:
    """Whether task y already waits for task x, directly or for a message of it."""
    return any(y == after or y in graph.nodes[after].after for after in graph.nodes[x].after)
