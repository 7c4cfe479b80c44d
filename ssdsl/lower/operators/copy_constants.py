"""Copies operators that repeat a constant to the places of their readers, so that no message carries their results.

A mask that is repeated for every sample depends on nothing, but its whole result is as large as the batch. So it is not
a constant that is computed once and kept: each part repeats it for itself. If operators in several places read it, as
the stages of a pipeline do, each place has an operator of its own. It is cut as its first reader there is, and as the
plan cuts it itself. An operator that a plan assigns by itself stays there.
"""

from ssdsl.lower.stages import Planned
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.rewrite.copy_repeated import copy_repeated
from ssdsl.plan.neighbours.place_beside import beside
from ssdsl.plan.plan import NOTHING, OpPlan, Placement, Plan
from ssdsl.record import replace


def copy_constants(lowering: Planned) -> Planned:
    """Replaces the plan by one in which repeated constants are computed where they are read."""
    return replace(lowering, plan=with_copies(lowering.plan))


def with_copies(plan: Plan) -> Plan:
    """The plan in which each place that reads a repeated constant has an operator of its own for it, with what the plan
    says of the original. Plans for one graph in which the same readers are together get the same graph object."""
    graph = plan.graph
    results = graph.results
    repeated = (graph.by_name[name] for name in graph.repeated if not plan.of(name).stays)
    moving = {operator.name for operator in repeated if results.isdisjoint(o.value for o in operator.outputs)}
    if all(plan.of(name).home == plan.of(reader).home for name in moving for reader in _readers(graph, name)):
        return plan
    numbers: dict[Placement, int] = {}  # of places, in the order of the readers
    others = {r: None for name in graph.by_name if name in moving for r in _readers(graph, name) if r not in moving}
    copied = copy_repeated(graph, moving, {r: numbers.setdefault(plan.of(r).home, len(numbers)) for r in others})
    records = dict(plan.operators)
    for copy in copied.copies:
        operator, host = copied.graph.by_name[copy.name], copied.graph.by_name[copy.host]
        own, there = plan.of(copy.source), records[copy.host]
        records[copy.name] = own if own.home == there.home else _beside(host, there, operator, own)
    ordered = {name: records[name] for name in copied.graph.by_name if name in records}
    return replace(plan, graph=copied.graph, operators=ordered)


def _readers(graph: Graph, name: str) -> list[str]:
    """The operators that read a result of an operator."""
    return [reader.name for reader in graph.readers_of(graph.by_name[name])]


def _beside(host: Operator, there: OpPlan, operator: Operator, own: OpPlan) -> OpPlan:
    """The record of a copy in the place of its reader `host`. It keeps its own cuts where the place has the same
    axes."""
    kept = OpPlan(indices=own.indices, whole=own.whole) if _axes(there.home) == _axes(own.home) else NOTHING
    return beside(host, there, operator, kept, combines=False)


def _axes(place: Placement) -> tuple[str, list[str]]:
    """The mesh of a place, and the axes that it fixes."""
    return place.mesh, [axis for axis, _ in place.fixed]
