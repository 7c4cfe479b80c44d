"""Checks the optimizer's step: it runs once, behind all gradients, and weights that others updated are gathered."""

from ssdsl.ir.action import Compute, GatherParam, StartReduce, Update, WaitReduce
from ssdsl.ir.function import Backward
from ssdsl.ir.param import FlatParam, SumTiedGrads, Zero
from ssdsl.ir.program import Role
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Share, share


def check_updates(facts: ProofFacts, role: Role) -> None:
    """Adds a failure for each gradient that is not completed, and each weight that is not updated, exactly once and in
    time."""
    flats = [f for f in facts.program.flats if share(role.submesh, f.submesh) is Share.ALL]
    where, span = f"role `{role.name}`", role.submesh.mesh.span
    updates = [k for k, a in enumerate(role.actions) if isinstance(a, Update)]
    if not facts.program.trains:
        if changes := [a for a in role.actions if isinstance(a, Update | StartReduce | WaitReduce | GatherParam)]:
            facts.failures.add(Rule.UPDATE, where, "", "none, as nothing trains", changes[0], span)
        return
    last_task = max((k for k, a in enumerate(role.actions) if isinstance(a, Compute)), default=-1)
    is_idle = not flats and last_task < 0
    if not is_idle and (len(updates) != 1 or updates[0] < last_task):  # also without weights: the update ends a step
        facts.failures.add(Rule.UPDATE, where, "", "one update behind all tasks", f"updates at {updates}", span)
    update = updates[0] if updates else len(role.actions)
    starts, waits, gathers = (_positions(role, kind) for kind in (StartReduce, WaitReduce, GatherParam))
    adds = _additions(facts, role, flats)
    numbers = {f.number for f in flats}
    for flat in flats:
        _check(facts, flat, adds[flat.number], starts, waits, gathers, update, where)
    for found in (starts, waits, gathers):
        for number in found.keys() - numbers:
            facts.failures.add(
                Rule.REDUCE, where, "", f"flat parameters of these devices: {sorted(numbers)}", number, span
            )


def _check(
    facts: ProofFacts,
    flat: FlatParam,
    adding: list[int],
    starts: dict[int, list[int]],
    waits: dict[int, list[int]],
    gathers: dict[int, list[int]],
    update: int,
    where: str,
) -> None:
    start, wait, gather = (found.get(flat.number, []) for found in (starts, waits, gathers))
    last = adding[-1] if adding else -1
    tied = any(isinstance(step, SumTiedGrads) for step in flat.completion)
    tensor, span = ", ".join(flat.weights[:3]), flat.submesh.mesh.span
    match flat.zero:
        case Zero.NONE if not flat.completion:
            is_started = not start  # the gradient that backward leaves is complete
            wanted = "none: nothing is owed"
        case Zero.NONE | Zero.OPTIMIZER:
            is_started = len(start) == 1 and start[0] > last
            wanted = "one start behind the last addend"
        case Zero.GRADS:  # one between any two tasks that add, and one behind the last
            ends = [*adding[1:], update][: len(adding)]
            is_started = len(start) == len(adding) and all(
                a < s < b for a, s, b in zip(adding, start, ends, strict=True)
            )
            wanted = "one start behind each addend"
        case Zero.WEIGHTS:
            is_started = not start  # the backward of a gather reduces
            wanted = "none: the backward of a gather sums"
    if not is_started:
        facts.failures.add(
            Rule.REDUCE, f"{where}, flat parameter {flat.number}", tensor, wanted, f"starts at {start}", span
        )
    waits_wanted = 1 if tied or (flat.completion and flat.zero in (Zero.NONE, Zero.OPTIMIZER)) else 0
    begun = max([last, *start])
    if len(wait) != waits_wanted or any(not begun < w < update for w in wait):
        facts.failures.add(
            Rule.REDUCE,
            f"{where}, flat parameter {flat.number}",
            tensor,
            f"{waits_wanted} waits between start and update",
            f"waits at {wait}",
            span,
        )
    gathers_wanted = 1 if flat.zero in (Zero.OPTIMIZER, Zero.GRADS) else 0
    if len(gather) != gathers_wanted or any(g < update for g in gather):
        facts.failures.add(
            Rule.STALE,
            f"{where}, flat parameter {flat.number}",
            tensor,
            f"{gathers_wanted} gathers behind the update",
            f"gathers at {gather}",
            span,
        )


def _positions(role: Role, kind: "type[StartReduce] | type[WaitReduce] | type[GatherParam]") -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for k, action in enumerate(role.actions):
        if isinstance(action, kind):
            found.setdefault(action.flat, []).append(k)
    return found


def _additions(facts: ProofFacts, role: Role, flats: list[FlatParam]) -> dict[int, list[int]]:
    """For each flat parameter, the numbers of the role's actions that add to its gradient."""
    adds: dict[tuple[int, Phase], list[int]] = {}
    for function in facts.program.functions:
        if near := [f for f in flats if f.submesh == function.submesh]:
            trained = function.trained
            last = Phase.WGRAD if function.backward is Backward.HALVES else Phase.BACKWARD
            adds[function.number, last] = [f.number for f in near if not trained.isdisjoint(f.weights)]
    found: dict[int, list[int]] = {f.number: [] for f in flats}
    for k, action in enumerate(role.actions):
        if isinstance(action, Compute):
            for number in adds.get((action.function, action.phase), ()):
                found[number].append(k)
    return found
