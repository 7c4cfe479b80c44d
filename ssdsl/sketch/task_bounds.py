"""What a plan costs at least, found from its functions: nearer than what its text says (`bounds.py`), at a third of the
time of a simulation and less.

Each device computes and communicates all its tasks one after another, as a simulation has them. It does not begin
before one micro-batch has come to it, and is not done before one has gone back; behind its last task it updates its
weights. In whatever order the tasks run, no step is shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.ir.action import Compute, Update
from ssdsl.ir.function import Earlier, Function, Input
from ssdsl.ir.parts import BACK_PHASES
from ssdsl.ir.program import Members, Program
from ssdsl.lower.lower import formed
from ssdsl.lower.tasks.graph import roles_of
from ssdsl.plan.plan import Clock, OpPlan, Phase, Plan, TaskSet, Timed
from ssdsl.simulate.memory import state_of
from ssdsl.simulate.roofline import Roofline
from ssdsl.simulate.simulate import prices
from ssdsl.simulate.state import State


@dataclass(frozen=True, slots=True)
class Least:
    """Seconds of a step, and bytes of the fullest device."""

    step_s: float
    memory_bytes: float


@paused_collector()
def least_of(plan: Plan, cluster: Cluster, state: State, halved: bool) -> Least:
    """The bounds of a plan; `halved` where orders tell the halves of a backward apart, of which the second may come
    last. Raises PlanError where the plan cannot be lowered."""
    lowering = formed(_by_assignment(plan), cluster)
    roles = tuple(roles_of(plan, tuple(lowering.submeshes.values())))
    program = replace(lowering, roles=roles).program()
    found = prices(program, cluster, state)
    tasks = _Tasks(program, found.costs)
    heads, tails = tasks.heads(), tasks.tails()
    step, memory = 0.0, 0.0
    for r, role in enumerate(roles):
        own = [f for f in program.functions if r in tasks.members[f.submesh]]
        busy = sum((tasks.forward(f, r) + tasks.backward(f, r)) * prod(t.parts for t in f.time) for f in own)
        head, tail = (min((ends[f.number] for f in own), default=0.0) for ends in (heads, tails))
        update = found.costs.of(Update(), role).time_s
        step = max(step, head + busy + max(update, 0.0 if halved else tail))
        kept = (found.activations.of(f) for f in own)
        held = sum(k.size_bytes - sum(size for _, size in k.lent) for k in kept)
        memory = max(memory, held + sum(change.size_bytes for change in state_of(program, state, role, {})))
    return Least(step, memory)


def _by_assignment(plan: Plan) -> Plan:
    """The plan with a clock that names what each `assign` places, in each turn of a loop: a schedule of its stages
    makes these functions of their own."""
    numbers: dict[int, int] = {}  # of placements: one for each turn
    changed: dict[int, OpPlan] = {}
    for record in plan.operators.values():
        if id(record) not in changed:
            sets = () if record.place is None else (numbers.setdefault(id(record.place), len(numbers)),)
            changed[id(record)] = replace(record, sets=frozenset(sets))
    span = plan.meshes[-1].span
    assert span is not None, "a plan that is read has places"
    rows = tuple(Timed(TaskSet(number, (), None), 0, span) for number in numbers.values())
    operators = {name: changed[id(record)] for name, record in plan.operators.items()}
    return replace(plan, operators=operators, orders=(), clocks=(Clock(rows, span),))


@dataclass(slots=True)
class _Tasks:
    """What the tasks of a program's functions take, before they have an order."""

    program: Program
    costs: Roofline
    members: Members = field(init=False)
    _seconds: dict[tuple[int, Phase, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = Members(self.program.roles)

    def forward(self, function: Function, role: int) -> float:
        """Seconds of a task on a role."""
        return self._of(function, Phase.FORWARD, role)

    def backward(self, function: Function, role: int) -> float:
        """Seconds of a task's backward on a role, in one or in halves."""
        return sum(self._of(function, phase, role) for phase in BACK_PHASES[function.backward])

    def heads(self) -> dict[int, float]:
        """By function: how long it takes from the start of a step until its first task can run."""
        return self._ends(self.forward, gradient=False)

    def tails(self) -> dict[int, float]:
        """By function: how long the backwards take that wait for its last one; nothing behind what has no backward."""
        return self._ends(self.backward, gradient=True)

    def _ends(self, seconds: Callable[[Function, int], float], gradient: bool) -> dict[int, float]:
        found: dict[int, float] = {}
        for function in self.program.functions:
            ends = [0.0]
            for given in function.inputs:
                if (gradient and not given.gradient) or any(isinstance(m, Earlier) for m in given.merges):
                    continue  # the first part reads nothing of earlier ones
                maker = self.program.functions[given.producer]
                own = min(seconds(maker, r) for r in self.members[maker.submesh])
                ends.append(found[maker.number] + own + self._travel(given, gradient))
            found[function.number] = max(ends)
        return found

    def _travel(self, given: Input, gradient: bool) -> float:
        if given.message is None:
            return 0.0
        return self.costs.network.message(self.program.messages[given.message], gradient).time_s

    def _of(self, function: Function, phase: Phase, role: int) -> float:
        key = function.number, phase, role
        if key not in self._seconds:
            self._seconds[key] = self.costs.of(Compute(function.number, (), phase), self.program.roles[role]).time_s
        return self._seconds[key]
