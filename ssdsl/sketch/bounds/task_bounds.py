"""Lower bounds on the cost of a plan, from its functions: nearer than those from its text (`bounds.py`), at a third of
the time of a simulation or less.

Each device computes and communicates all its tasks one after another, as in a simulation. It does not begin before one
micro-batch has come to it, and does not end before one has gone back; after its last task it updates its weights. No
order of the tasks gives a shorter step. Ranks that share cores compute no more than these can.
"""

from collections.abc import Callable
from math import prod

from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.ir.action import Update
from ssdsl.ir.function import Earlier, Function
from ssdsl.plan.plan import Plan
from ssdsl.simulate.memory.state import StatePrecision
from ssdsl.simulate.simulate import capacity_bytes
from ssdsl.sketch.bounds.bounds import HeldBytes, Least
from ssdsl.sketch.bounds.unordered import Unordered, unordered


@paused_collector()
def least_of(plan: Plan, cluster: Cluster, state: StatePrecision, halved: bool) -> Least:
    """The bounds of a plan. `halved`: an order may name halves of backwards. Then a `.wgrad` may come last and nothing
    follows it; and a backward takes as long as the shorter of whole and in halves, which keeps some values that a whole
    one computes or gathers again. Raises PlanError where the plan cannot be lowered."""
    found = unordered(plan, sets := _by_assignment(plan), cluster, state)
    ways = (found, unordered(plan, sets, cluster, state, halves=True)) if halved else (found,)

    def backward(f: Function, role: int) -> float:
        return min(way.backward(way.program.functions[f.number], role) for way in ways)

    def busy_cores(f: Function, role: int) -> float:
        return min(way.computing(way.program.functions[f.number], role) for way in ways)

    def working(f: Function) -> int:
        """What one of the backwards needs, the first of which runs while all is kept."""
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
        busy = sum((found.forward(f, r) + backward(f, r)) * times[f.number] for f in own)
        head, tail = (min((ends[f.number] for f in own), default=0.0) for ends in (heads, tails))
        update = found.prices.costs.of(Update(), role)
        step = max(step, head + busy + max(update.time_s, 0.0 if halved else tail))
        computes = sum(busy_cores(f, r) * times[f.number] for f in own) + update.compute_s
        computing += role.submesh.size * computes
        kept = sum(map(found.kept_bytes, own))
        held = kept + found.state_bytes(r) + found.input_bytes(r) + min(map(working, own), default=0)
        memory.append(HeldBytes(held, capacity_bytes(found.program, role, cluster), kept))
    cores = found.prices.costs.cores
    return Least(step if cores is None else max(step, computing / cores), tuple(memory))


def _by_assignment(plan: Plan) -> dict[str, int]:
    """A number for each operator: equal for operators that one `assign` places in the same turn of a loop. A schedule
    of its stages puts these in functions of their own."""
    numbers: dict[int, int] = {}
    placed = ((name, id(record.place)) for name, record in plan.operators.items() if record.place is not None)
    return {name: numbers.setdefault(place, len(numbers)) for name, place in placed}


def _ends(found: Unordered, seconds: Callable[[Function, int], float], gradient: bool) -> dict[int, float]:
    """For each function: the least time from the start of a step until its first task can run or, with `gradient`, the
    least time of the backwards that follow its last one; nothing follows a function without a backward."""
    ends: dict[int, float] = {}
    for function in found.program.functions:
        before = [0.0]
        for given in function.inputs:
            if (gradient and not given.gradient) or any(isinstance(m, Earlier) for m in given.merges):
                continue  # the first part reads nothing of earlier ones
            maker = found.program.functions[given.producer]
            own = min(seconds(maker, r) for r in found.members[maker.submesh])
            before.append(ends[maker.number] + own + found.travel(given, gradient))
        ends[function.number] = max(before)
    return ends
