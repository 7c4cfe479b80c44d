"""Groups operators into segments, which become functions: all operators of one kind at one level."""

from dataclasses import replace

from ssdsl.lower.lowering import Kind, Lowering, Segment
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import HALVES


def form_functions(lowering: Lowering) -> Lowering:
    """Adds the segments, in an order in which they can run."""
    kinds, levels = lowering.kinds, lowering.levels
    groups: dict[tuple[int, Kind], list[Operator]] = {}
    for o in lowering.graph.computing:
        groups.setdefault((levels[o.name], kinds[o.name]), []).append(o)
    first = {key: position for position, key in enumerate(groups)}
    stages = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    halves = {tasks.number for tasks in lowering.plan.ordered() if tasks.phase in HALVES}

    def in_halves(operator: Operator) -> bool:
        return not halves.isdisjoint(lowering.plan.of(operator.name).sets)

    segments = tuple(
        Segment(kind[0], kind[1], tuple(inside), in_halves(inside[0]), stages[kind])
        for level, kind in sorted(groups, key=lambda group: (group[0], first[group]))
        for inside in (groups[level, kind],)
    )
    return replace(lowering, segments=segments)
