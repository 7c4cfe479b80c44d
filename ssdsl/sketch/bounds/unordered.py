"""A plan's functions before they have an order: their seconds and their memory on each device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.action import Compute
from ssdsl.ir.function import Backward, Function, FunctionInput
from ssdsl.ir.parts import BACK_PHASES
from ssdsl.ir.program import Members, Program
from ssdsl.lower.lower import formed
from ssdsl.lower.tasks.graph import roles_of
from ssdsl.plan.plan import ClockOrder, ClockRow, OpPlan, Phase, Plan, TaskSet
from ssdsl.simulate.memory.memory import state_of
from ssdsl.simulate.memory.state import StatePrecision
from ssdsl.simulate.price.costs import Cost
from ssdsl.simulate.simulate import Prices, prices


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

    def state_bytes(self, role: int) -> int:
        """The bytes of weights, gradients and optimizer state of a device."""
        changes = state_of(self.program, self.prices.state, self.program.roles[role], {})
        return sum(change.size_bytes for change in changes)

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
