"""Blocks: maximal runs of operators that nothing in the plan separates.

Operators share a block when they run on the same devices, have the same indices in time and are in the same sets that
`order` names. The blocks of one kind are told apart by their depth, the number of changes of kind on the way from the
inputs, so that blocks never wait for each other in a circle.
"""

from dataclasses import dataclass

from ssdsl.lower.cuts import LINEAR, OperatorCut
from ssdsl.lower.layout import Submesh
from ssdsl.model.graph import Graph, Operand, Operator, Stage
from ssdsl.plan.plan import HALVES, Plan


@dataclass(frozen=True, slots=True)
class Run:
    """The operators of a block, in graph order, with what they have in common."""

    submesh: Submesh
    time: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    operators: tuple[Operator, ...]
    halves: bool = False
    stage: int = 0


Key = tuple[Submesh, tuple[tuple[str, int, tuple[int, ...] | None], ...], tuple[int, ...]]


def form_blocks(plan: Plan, submeshes: dict[str, Submesh], cuts: dict[str, tuple[OperatorCut, ...]]) -> list[Run]:
    """The blocks of a plan, in an order in which they can run."""
    operators = [o for o in plan.graph.operators if o.stage is Stage.COMPUTE]
    member = _order_sets(plan)
    keys: dict[str, Key] = {}
    for o in operators:
        time = tuple((c.index, c.count, c.sizes) for c in cuts[o.name] if not c.in_space)
        keys[o.name] = (submeshes[o.name], tuple(sorted(time)), tuple(sorted(member.get(o.name, ()))))
    depths = _depths(operators, keys, cuts)
    groups: dict[tuple[int, Key], list[Operator]] = {}
    for o in operators:
        groups.setdefault((depths[o.name], keys[o.name]), []).append(o)
    first = {key: position for position, key in enumerate(groups)}
    stages = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    halves = frozenset[str]().union(*(t.operators for t in plan.ordered() if t.phase in HALVES))
    return [
        Run(key[0], key[1], tuple(inside), inside[0].name in halves, stages[key])
        for depth, key in sorted(groups, key=lambda group: (group[0], first[group]))
        for inside in (groups[depth, key],)
    ]


def _order_sets(plan: Plan) -> dict[str, set[int]]:
    """For each operator, the numbers of the sets of operators, named in `order`, that it is in."""
    numbers: dict[frozenset[str], int] = {}
    for tasks in plan.ordered():
        numbers.setdefault(tasks.operators, len(numbers))
    member: dict[str, set[int]] = {}
    for operators, number in numbers.items():
        for name in operators:
            member.setdefault(name, set()).add(number)
    return member


def _depths(
    operators: list[Operator], keys: dict[str, Key], cuts: dict[str, tuple[OperatorCut, ...]]
) -> dict[str, int]:
    """Depth of each operator: as early as its inputs allow, then as late as its consumers allow, to leave few
    blocks."""
    producer = {o.value: (op, o) for op in operators for o in op.outputs}
    edges: dict[str, list[tuple[str, int]]] = {o.name: [] for o in operators}
    depth: dict[str, int] = {}
    for op in operators:
        depth[op.name] = 0
        for operand in op.inputs:
            if operand.value in producer:
                source, output = producer[operand.value]
                apart = keys[source.name] != keys[op.name] or not same_part(
                    cuts[source.name], output, cuts[op.name], operand
                )
                edges[source.name].append((op.name, int(apart)))
                depth[op.name] = max(depth[op.name], depth[source.name] + apart)
    for op in reversed(operators):
        if edges[op.name]:
            depth[op.name] = min(depth[user] - apart for user, apart in edges[op.name])
    return depth


def same_part(
    before: tuple[OperatorCut, ...], output: Operand, after: tuple[OperatorCut, ...], operand: Operand
) -> bool:
    """Whether a part of the consumer reads just the producer's part with the same indices in time."""
    made = {c.index: _digit(c, output) for c in before if not c.in_space}
    read = {c.index: _digit(c, operand) for c in after if not c.in_space}
    return all(made[i] == read[i] and (made[i] is not None or _linear(after, i)) for i in made.keys() & read.keys())


def _digit(c: OperatorCut, operand: Operand) -> tuple[int, int, int] | None:
    places = [dim for axis in operand.axes for dim in axis]
    return (places.index(c.dim), c.stride, c.count) if c.dim in places else None


def _linear(cuts: tuple[OperatorCut, ...], index: str) -> bool:
    return any(c.index == index and c.dim == LINEAR for c in cuts)


def submeshes_of(plan: Plan, graph: Graph) -> dict[str, Submesh]:
    """The devices of each placed operator; equal placements share one submesh."""
    meshes = {m.name: m for m in plan.meshes}
    made: dict[tuple[str, tuple[tuple[str, int], ...]], Submesh] = {}
    return {
        o.name: made.setdefault((p.mesh, p.fixed), Submesh(meshes[p.mesh], p.fixed))
        for o in graph.operators
        if (p := plan.placements.get(o.name)) is not None
    }
