"""Weights that stay once they are gathered: they are dropped before they change, and by all devices alike, as those
that have dropped them gather them together."""

from collections.abc import Collection

from ssdsl.ir.program import Compute, DropWeights, KeepWeights, Role, Update
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Inside

Event = Compute | type[KeepWeights | DropWeights | Update]


def check_kept(facts: ProofFacts) -> None:
    """Adds a failure for each flat parameter whose weights stay in parts that they do not have, outlive an update on
    some device, or are there for a task on some of its devices alone. Those of which no weights stay have nothing that
    keeps or drops them (`check_updates`)."""
    program = facts.program
    kept = {flat.number: flat for flat in program.flats if flat.kept is not None}
    if not kept:
        return
    for number, flat in kept.items():
        axes = flat.kept.axes if flat.kept is not None else ()
        if axes == flat.sharded.weights or not {*axes} <= {*flat.sharded.weights}:
            wanted = f"in some of the parts over {flat.sharded.weights}"
            facts.fail(Rule.STAYS, f"flat parameter {number}", "", wanted, axes, flat.submesh.mesh.span)
    gathered = {
        f.number: {flat for section in f.sections for flat in section.gathers} & kept.keys() for f in program.functions
    }
    first: dict[int, tuple[Role, list[Event]]] = {}  # by flat parameter, what one of its roles does
    for role in program.roles:
        inside, found = Inside(role.submesh), _events(role, kept, gathered)
        for number, flat in kept.items():
            if not inside[flat.submesh]:
                continue
            events, where, span = found[number], f"role `{role.name}`, flat parameter {number}", flat.submesh.mesh.span
            other, known = first.setdefault(number, (role, events))
            if events != known:
                told = f"what `{other.name}` does"
                facts.fail(Rule.STAYS, where, "", told, f"{len(events)} other actions", span)
            changes = [e for e in events if not isinstance(e, Compute)]
            wanted_changes = [KeepWeights, DropWeights] * changes.count(KeepWeights) + [Update] * changes.count(Update)
            if changes != wanted_changes:
                facts.fail(Rule.STAYS, where, "", "kept, then dropped, before the update", changes, span)


def _events(role: Role, kept: Collection[int], gathered: dict[int, set[int]]) -> dict[int, list[Event]]:
    """What a role does with the weights of each flat parameter that is `kept`, in order: tasks that gather them, what
    keeps and drops them, and updates; `gathered` are those that each function gathers."""
    found: dict[int, list[Event]] = {number: [] for number in kept}
    for action in role.actions:
        match action:
            case Compute():
                for number in gathered[action.function]:
                    found[number].append(action)
            case Update():
                for events in found.values():
                    events.append(Update)
            case KeepWeights() | DropWeights() if action.flat in found:
                found[action.flat].append(type(action))
    return found
