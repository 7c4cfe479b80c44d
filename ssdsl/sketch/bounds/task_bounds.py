"""Lower bounds on the cost of a plan, from its functions: nearer than those from its text (`bounds.py`), at a third of
the time of a simulation or less. The functions have no order yet: only their seconds and their memory on each device.

Each device computes and communicates all its tasks one after another, as in a simulation. It does not begin before one
micro-batch has come to it, and does not end before one has gone back; after its last task it updates its weights. No
order of the tasks gives a shorter step. Ranks that share cores compute no more than these can.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.identity import ByIdentity
from ssdsl.ir.function import Backward, Function, FunctionInput
from ssdsl.ir.program import Compute, Kernels, Members, Program, Update
from ssdsl.lang import nodes
from ssdsl.lower.lower import formed, formed_with
from ssdsl.lower.stages import Formed, Planned, Scheduled, grown
from ssdsl.lower.tasks.graph import roles_of
from ssdsl.lower.tasks.start_across_tasks import with_starts
from ssdsl.plan.plan import ClockOrder, ClockRow, OpPlan, Phase, Placement, Plan, TaskSet
from ssdsl.record import replace
from ssdsl.simulate.memory.memory import Inputs, state_bytes
from ssdsl.simulate.price.costs import Cost
from ssdsl.simulate.simulate import Prices, fullest_devices, prices
from ssdsl.sketch.bounds.bounds import HeldBytes, Least
from ssdsl.text.source import Span


def unordered(
    plan: Plan, sets: Mapping[str, int], cluster: Cluster, state: StatePrecision, kernels: Kernels = Kernels.EAGER
) -> "Unordered":
    """Lowers a plan without its orders. Operators with different numbers in `sets` go into different functions, as if a
    clock named the sets. Raises PlanError if the plan cannot be lowered."""
    return _priced(formed(Planned(_named(plan, sets), cluster, kernels=kernels)), cluster, state)


def _priced(lowering: Formed, cluster: Cluster, state: StatePrecision) -> "Unordered":
    lowering = with_starts(lowering, lambda producer, reader: True)  # an order may hide what goes between functions
    roles = tuple(roles_of(lowering.plan, tuple(lowering.submeshes.values())))
    return Unordered(
        lowering, prices(grown(lowering, Scheduled, roles=roles, tasks=(), stated={}).program(), cluster, state)
    )


@dataclass(slots=True)
class Unordered:
    """A program whose roles have no tasks yet."""

    lowering: Formed
    prices: Prices
    members: Members = field(init=False)
    _costs: dict[tuple[int, Phase, int], Cost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = Members(self.program.roles)

    @property
    def program(self) -> Program:
        """The program."""
        return self.prices.program

    def halved(self) -> "Unordered":
        """The same functions with their backwards in halves."""
        (clock,) = self.lowering.plan.clocks
        rows = tuple(replace(row, tasks=replace(row.tasks, phase=Phase.WGRAD)) for row in clock.rows)
        lowering = formed_with((replace(clock, rows=rows),), self.lowering)
        return _priced(lowering, self.prices.cluster, self.prices.state)

    def forward(self, function: Function, role: int) -> float:
        """The seconds of a function's forward on a role."""
        return self._of(function, Phase.FORWARD, role).time_s

    def backward(self, function: Function, role: int) -> float:
        """The seconds of a function's backward on a role, both halves together."""
        return sum(self._of(function, phase, role).time_s for phase in function.phases[1:])

    def computing(self, function: Function, role: int) -> float:
        """The seconds for which both compute, without their collectives."""
        return sum(self._of(function, phase, role).compute_s for phase in function.phases)

    def weights(self, function: Function, role: int) -> float:
        """The seconds on a role of the half of a backward that computes gradients of weights; 0 if the backward is not
        halved."""
        return self._of(function, Phase.WGRAD, role).time_s if function.backward is Backward.HALVES else 0.0

    def travel(self, given: FunctionInput, gradient: bool) -> float:
        """The seconds until an input's message, or its gradient's, has arrived."""
        if given.message is None:
            return 0.0
        return self.prices.costs.network.message(self.program.messages[given.message], gradient).arrives_s

    def kept_bytes(self, function: Function) -> int:
        """The bytes that a task keeps on a device until its backward, without values that others read soon."""
        return self.prices.activations.of(function).waiting_bytes

    def kept_for_weights_bytes(self, function: Function) -> int:
        """The part of these bytes that a task keeps until the gradients of its weights."""
        return min(self.kept_bytes(function), self.prices.activations.of(function).for_weights)

    def room_bytes(self, role: int, share: float) -> float:
        """The bytes of a device for what tasks keep, if it uses this share of its memory: without the state, gradients
        among it, inputs, and what the task that needs most needs beside."""
        own = [f for f in self.program.functions if role in self.members[f.submesh]]
        learned = {p.var.name.value: 0.0 for f in own for p in f.parameters}
        working = max((self.working_bytes(f)[1] for f in own), default=0)
        at, capacity = fullest_devices(self.program, self.program.roles[role], self.prices.cluster, self.prices.state)
        return share * capacity - self.state_bytes(role, learned, at) - self.input_bytes(role) - working

    def working_bytes(self, function: Function) -> tuple[int, int]:
        """The bytes that a backward needs while it runs, beside those that its task keeps: what it recomputes, the
        gradients that it makes, and the weights that it gathers. In the first backward of a step, which also makes the
        gradients of weights, and in a later one."""
        kept = self.prices.activations.of(function)
        gathered = kept.gathered_bytes if function.backward is not Backward.WHOLE else 0
        return kept.first_bytes + gathered, kept.later_bytes + gathered

    def state_bytes(
        self,
        role: int,
        learned: Mapping[str, float] = MappingProxyType({}),
        at: Mapping[str, int] = MappingProxyType({}),
    ) -> int:
        """The bytes of weights and optimizer state of a device, and of the gradients of the weights that are
        `learned`."""
        return state_bytes(self.program, self.prices.state, self.program.roles[role], learned, at)

    def input_bytes(self, role: int) -> int:
        """The bytes of a device's part of the batch."""
        return Inputs(self.prices.activations.facts).of(self.program.roles[role])

    def _of(self, function: Function, phase: Phase, role: int) -> Cost:
        key = function.number, phase, role
        if key not in self._costs:
            task = Compute(function.number, (), phase)
            self._costs[key] = self.prices.costs.of(task, self.program.roles[role])
        return self._costs[key]


def _named(plan: Plan, sets: Mapping[str, int]) -> Plan:
    """The plan with one clock that names these sets, in place of its orders."""
    changed: dict[tuple[OpPlan, int | None], OpPlan] = {}
    operators: dict[str, OpPlan] = {}
    for name, record in plan.operators.items():
        key = record, number = record, sets.get(name)
        if key not in changed:
            changed[key] = replace(record, sets=frozenset(() if number is None else (number,)))
        operators[name] = changed[key]
    span = plan.meshes[-1].span
    assert span is not None, "a plan that is read has places"
    rows = tuple(ClockRow(TaskSet(number, (), None), 0, span) for number in sorted(set(sets.values())))
    return replace(plan, operators=operators, orders=(), clocks=(ClockOrder(rows, span),))


# -- bounds ------------------------------------------------------------------------------------------------------------


def has_orders(script: nodes.Script) -> bool:
    """Whether a plan's own text orders tasks, perhaps those of parts of a function. A schedule of a library names whole
    stages."""
    return any(isinstance(node, nodes.OrderStatement | nodes.ClockStatement) for node in nodes.walk(script))


@paused_collector()
def least_of(
    plan: Plan,
    cluster: Cluster,
    state: StatePrecision,
    halved: bool,
    kernels: Kernels = Kernels.EAGER,
    hides: bool = False,
) -> Least:
    """The bounds of a plan. `halved`: an order may name halves of backwards. Then a `.wgrad` may come last and nothing
    follows it; and a backward takes as long as the shorter of whole and in halves, which keeps some values that a whole
    one computes or gathers again. `hides`: an order may cut functions in tasks that compute while another's collectives
    travel, so these count for nothing. Raises PlanError if the plan cannot be lowered."""
    found = unordered(plan, _by_assignment(plan), cluster, state, kernels)
    ways = (found, found.halved()) if halved else (found,)

    def backward(f: Function, role: int) -> float:
        return min(way.backward(way.program.functions[f.number], role) for way in ways)

    def busy_cores(f: Function, role: int) -> float:
        return min(way.computing(way.program.functions[f.number], role) for way in ways)

    def working(f: Function) -> int:
        """The least bytes that a backward needs. The first one runs while all is kept."""
        return min(min(way.working_bytes(way.program.functions[f.number])) for way in ways)

    heads = _ends(found, found.forward, gradient=False)
    tails = _ends(found, backward, gradient=True)
    step, memory, computing = 0.0, list[HeldBytes](), 0.0
    of_role: list[list[Function]] = [[] for _ in found.program.roles]
    for f in found.program.functions:
        for r in found.members[f.submesh]:
            of_role[r].append(f)
    for r, (role, own) in enumerate(zip(found.program.roles, of_role, strict=True)):
        times = {f.number: prod(t.parts for t in f.time) for f in own}
        busy = sum((busy_cores(f, r) if hides else found.forward(f, r) + backward(f, r)) * times[f.number] for f in own)
        head, tail = (min((ends[f.number] for f in own), default=0.0) for ends in (heads, tails))
        update = found.prices.costs.of(Update(), role)
        step = max(step, head + busy + max(update.time_s, 0.0 if halved else tail))
        computes = sum(busy_cores(f, r) * times[f.number] for f in own) + update.compute_s
        computing += role.submesh.size * computes
        kept = sum(map(found.kept_bytes, own))
        runs = min((working(f) for f in own if f.backward is not Backward.NONE), default=0)
        at, capacity = fullest_devices(found.program, role, cluster, found.prices.state)
        held = kept + found.state_bytes(r, at=at) + found.input_bytes(r) + runs
        memory.append(HeldBytes(held, capacity, kept))
    cores = found.prices.costs.cores
    return Least(step if cores is None else max(step, computing / cores), tuple(memory))


def _by_assignment(plan: Plan) -> dict[str, int]:
    """A number for each operator: different for operators that one `assign` places in different turns of a loop. A
    schedule of its stages puts these in functions of their own.

    What another `assign` places on the same devices gets the number of the turn before it in the graph, else of that
    behind it: a schedule may name both as one stage, as with a head beside the last layers.
    """
    numbers = ByIdentity[Placement, int]()  # each turn has a placement of its own
    latest: dict[Placement, tuple[int, set[Span]]] = {}  # by devices: the last number, and the statements that have it
    for place in (record.place for record in plan.operators.values()):
        if place is None or place in numbers:
            continue
        number, statements = latest.get(place, (0, {place.span}))
        if place.span in statements:
            latest[place] = number, statements = len(numbers), set[Span]()
        statements.add(place.span)
        numbers[place] = number
    return {name: numbers[record.place] for name, record in plan.operators.items() if record.place is not None}


def _ends(found: Unordered, seconds: Callable[[Function, int], float], gradient: bool) -> dict[int, float]:
    """For each function: the least time from the start of a step until its first task can run or, with `gradient`, the
    least time of the backwards that follow its last one; nothing follows a function without a backward."""
    ends: dict[int, float] = {}
    for function in found.program.functions:
        before = [0.0]
        for given in function.inputs:
            if (gradient and not given.gradient) or given.producer == function.number:
                continue  # the first part reads nothing of earlier ones
            maker = found.program.functions[given.producer]
            own = min(seconds(maker, r) for r in found.members[maker.submesh])
            before.append(ends[maker.number] + own + found.travel(given, gradient))
        ends[function.number] = max(before)
    return ends
