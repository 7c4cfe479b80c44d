"""Checks the optimizer's step: it runs once, behind all gradients, and weights that others updated are gathered."""

from ssdsl.ir.action import Compute, GatherParam, ScatterGrads, StartReduce, Update, WaitReduce
from ssdsl.ir.function import Backward
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Role
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Share, share

Reduction = ScatterGrads | StartReduce | WaitReduce | GatherParam


def check_updates(facts: ProofFacts, role: Role) -> None:
    """Adds a failure for each gradient that is not completed, and each weight that is not updated, exactly once and in
    time."""
    flats = [f for f in facts.program.flats if share(role.submesh, f.submesh) is Share.ALL]
    where, span = f"role `{role.name}`", role.submesh.mesh.span
    updates = [k for k, a in enumerate(role.actions) if isinstance(a, Update)]
    if not facts.program.trains:
        if changes := [a for a in role.actions if isinstance(a, Update | Reduction)]:
            facts.failures.add(Rule.UPDATE, where, "", "none, as nothing trains", changes[0], span)
        return
    last_task = max((k for k, a in enumerate(role.actions) if isinstance(a, Compute)), default=-1)
    is_idle = not flats and last_task < 0
    if not is_idle and (len(updates) != 1 or updates[0] < last_task):  # also without weights: the update ends a step
        facts.failures.add(Rule.UPDATE, where, "", "one update behind all tasks", f"updates at {updates}", span)
    update = updates[0] if updates else len(role.actions)
    found = {kind: _positions(role, kind) for kind in (ScatterGrads, StartReduce, WaitReduce, GatherParam)}
    adds = _additions(facts, role, flats)
    numbers = {f.number for f in flats}
    for flat in flats:
        at = {kind: places.get(flat.number, []) for kind, places in found.items()}
        _check(facts, flat, adds[flat.number], at, update, where)
    for places in found.values():
        for number in places.keys() - numbers:
            facts.failures.add(
                Rule.REDUCE, where, "", f"flat parameters of these devices: {sorted(numbers)}", number, span
            )


def _check(
    facts: ProofFacts, flat: FlatParam, adding: list[int], at: dict[type[Reduction], list[int]], update: int, where: str
) -> None:
    """Adds a failure for each kind of action on a flat parameter that does not run as often and when it must: `adding`
    are the role's actions that add to its gradient, and `at` the numbers of the actions of each kind."""
    last, ends = (adding[-1] if adding else -1), [*adding[1:], update]
    scatters, starts, waits, gathers = (at[kind] for kind in (ScatterGrads, StartReduce, WaitReduce, GatherParam))
    between = len(scatters) == len(adding) and all(a < s < b for a, s, b in zip(adding, scatters, ends, strict=False))
    begun = max([last, *scatters, *starts])
    once = 1 if flat.completion.once else 0
    gathered = 1 if flat.sharded.optimizer != flat.sharded.weights else 0
    in_time: dict[type[Reduction], bool] = {
        ScatterGrads: between if flat.completion.each else not scatters,
        StartReduce: len(starts) == once and all(start > max([last, *scatters]) for start in starts),
        WaitReduce: len(waits) == once and all(begun < wait < update for wait in waits),
        GatherParam: len(gathers) == gathered and all(gather > update for gather in gathers),
    }
    wanted = {
        ScatterGrads: "one behind each addend" if flat.completion.each else "no scatter: gradients are no finer",
        StartReduce: f"{once} starts behind the last addend",
        WaitReduce: f"{once} waits between start and update",
        GatherParam: f"{gathered} gathers behind the update",
    }
    tensor, span = ", ".join(flat.weights[:3]), flat.submesh.mesh.span
    for kind, is_right in in_time.items():
        if not is_right:
            rule = Rule.STALE if kind is GatherParam else Rule.REDUCE
            given = f"{kind.__name__} at {at[kind]}"
            facts.failures.add(rule, f"{where}, flat parameter {flat.number}", tensor, wanted[kind], given, span)


def _positions(role: Role, kind: type[Reduction]) -> dict[int, list[int]]:
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
