"""A plan's functions before they have an order: their seconds and their memory on each device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.action import Compute
from ssdsl.ir.function import Backward, Function, FunctionInput
from ssdsl.ir.parts import BACK_PHASES
from ssdsl.ir.program import Members, Program
from ssdsl.lower.lower import formed
from ssdsl.lower.tasks.graph import roles_of
from ssdsl.plan.plan import ClockOrder, ClockRow, OpPlan, Phase, Plan, TaskSet
from ssdsl.simulate.memory.inputs import Inputs
from ssdsl.simulate.memory.memory import state_of
from ssdsl.simulate.memory.state import StatePrecision
from ssdsl.simulate.price.costs import Cost
from ssdsl.simulate.simulate import Prices, capacity_bytes, prices


def unordered(
    plan: Plan, sets: Mapping[str, int], cluster: Cluster, state: StatePrecision, halves: bool = False
) -> "Unordered":
    """Lowers a plan without its orders. Operators with different numbers in `sets` go into different functions, as if a
    clock named the sets or, with `halves`, their backwards in halves. Raises PlanError where the plan cannot be
    lowered."""
    lowering = formed(_named(plan, sets, Phase.WGRAD if halves else None), cluster)
    roles = tuple(roles_of(plan, tuple(lowering.submeshes.values())))
    program = replace(lowering, roles=roles).program()
    return Unordered(program, prices(program, cluster, state))


@dataclass(slots=True)
class Unordered:
    """A program whose roles have no tasks yet."""

    program: Program
    prices: Prices
    members: Members = field(init=False)
    _costs: dict[tuple[int, Phase, int], Cost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = Members(self.program.roles)

    def forward(self, function: Function, role: int) -> float:
        """The seconds of a function's forward on a role."""
        return self._of(function, Phase.FORWARD, role).time_s

    def backward(self, function: Function, role: int) -> float:
        """The seconds of a function's backward on a role, both halves together."""
        return sum(self._of(function, phase, role).time_s for phase in BACK_PHASES[function.backward])

    def computing(self, function: Function, role: int) -> float:
        """The seconds for which both compute, without their collectives."""
        phases = (Phase.FORWARD, *BACK_PHASES[function.backward])
        return sum(self._of(function, phase, role).compute_s for phase in phases)

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
        return self.prices.activations.waiting_bytes(function)

    def kept_for_weights_bytes(self, function: Function) -> int:
        """The part of these bytes that a task keeps until the gradients of its weights."""
        return min(self.kept_bytes(function), self.prices.activations.of(function).for_weights)

    def room_bytes(self, role: int, share: float) -> float:
        """The bytes of a device for what tasks keep, if it uses this share of its memory: without the state, gradients
        among it, inputs, and what the task that needs most needs beside."""
        own = [f for f in self.program.functions if role in self.members[f.submesh]]
        learned = {p.var.name.value: 0.0 for f in own for p in f.parameters}
        working = max((self.working_bytes(f)[1] for f in own), default=0)
        capacity = capacity_bytes(self.program, self.program.roles[role], self.prices.cluster)
        return share * capacity - self.state_bytes(role, learned) - self.input_bytes(role) - working

    def working_bytes(self, function: Function) -> tuple[int, int]:
        """The bytes that a backward needs while it runs, beside those that its task keeps: what it recomputes, the
        gradients that it makes, and the weights that it gathers. In the first backward of a step, which also makes the
        gradients of weights, and in a later one."""
        kept = self.prices.activations.of(function)
        first, later = kept.first_bytes, kept.later_bytes
        return first + kept.gathered_bytes, later + kept.gathered_bytes

    def state_bytes(self, role: int, learned: Mapping[str, float] = MappingProxyType({})) -> int:
        """The bytes of weights and optimizer state of a device, and of the gradients of the weights that are
        `learned`."""
        changes = state_of(self.program, self.prices.state, self.program.roles[role], learned)
        return sum(change.size_bytes for change in changes)

    def input_bytes(self, role: int) -> int:
        """The bytes of a device's part of the batch."""
        return Inputs(self.prices.activations.facts).of(self.program.roles[role])

    def _of(self, function: Function, phase: Phase, role: int) -> Cost:
        key = function.number, phase, role
        if key not in self._costs:
            task = Compute(function.number, (), phase)
            self._costs[key] = self.prices.costs.of(task, self.program.roles[role])
        return self._costs[key]


def _named(plan: Plan, sets: Mapping[str, int], phase: Phase | None) -> Plan:
    changed: dict[tuple[int, int | None], OpPlan] = {}
    operators: dict[str, OpPlan] = {}
    for name, record in plan.operators.items():
        key = id(record), sets.get(name)
        if key not in changed:
            changed[key] = replace(record, sets=frozenset(() if key[1] is None else (key[1],)))
        operators[name] = changed[key]
    span = plan.meshes[-1].span
    assert span is not None, "a plan that is read has places"
    rows = tuple(ClockRow(TaskSet(number, (), phase), 0, span) for number in sorted(set(sets.values())))
    return replace(plan, operators=operators, orders=(), clocks=(ClockOrder(rows, span),))
