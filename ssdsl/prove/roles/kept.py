"""Weights that stay once they are gathered: they are dropped before they change, and by all devices alike, as those
that have dropped them gather them together."""

from collections.abc import Iterator

from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Compute, DropWeights, KeepWeights, Role, Update
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Inside

Event = Compute | type[KeepWeights | DropWeights | Update]


def check_kept(facts: ProofFacts) -> None:
    """Adds a failure for each flat parameter whose weights stay in parts that they do not have, outlive an update on
    some device, or are there for a task on some of its devices alone."""
    program = facts.program
    inside = {role.name: Inside(role.submesh) for role in program.roles}
    for flat in program.flats:
        where, span = f"flat parameter {flat.number}", flat.submesh.mesh.span
        axes = flat.kept.axes if flat.kept is not None else ()
        if flat.kept is not None and (axes == flat.sharded.weights or not {*axes} <= {*flat.sharded.weights}):
            facts.fail(Rule.STAYS, where, "", f"in some of the parts over {flat.sharded.weights}", axes, span)
        there = [(role, [*_events(facts, role, flat)]) for role in program.roles if inside[role.name][flat.submesh]]
        for role, events in there:
            if events != there[0][1]:
                told = f"what `{there[0][0].name}` does"
                facts.fail(Rule.STAYS, f"role `{role.name}`, {where}", "", told, f"{len(events)} other actions", span)
            found = [e for e in events if e is KeepWeights or e is DropWeights or e is Update]
            times = found.count(KeepWeights) if flat.kept is not None else 0
            if found != [KeepWeights, DropWeights] * times + [Update] * found.count(Update):
                told = "kept, then dropped, before the update"
                facts.fail(Rule.STAYS, f"role `{role.name}`, {where}", "", told, found, span)


def _events(facts: ProofFacts, role: Role, flat: FlatParam) -> Iterator[Event]:
    """Yields what a role does with the weights: tasks that gather them, what keeps and drops them, and updates."""
    functions = facts.program.functions
    gather = {f.number for f in functions if any(flat.number in section.gathers for section in f.sections)}
    for action in role.actions:
        match action:
            case Compute() if action.function in gather:
                yield action
            case Update():
                yield Update
            case KeepWeights() | DropWeights() if action.flat == flat.number:
                yield type(action)
