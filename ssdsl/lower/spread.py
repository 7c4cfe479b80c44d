"""Lets scalar linear operators work on partial sums: the tail of a loss takes over the indices of the sum before it.

`loss = sum / count` has no batch dimension, so a split by batch does not reach the division. Division by a constant
is linear: each part divides its own partial sum, and only the reported loss is added up. Where an operator is not
linear (a penalty that no index splits is added to the loss), it runs once, on the completed sum.
"""

from dataclasses import replace

from ssdsl.lower.cuts import LINEAR
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.model.ops.registry import is_linear, row
from ssdsl.plan.plan import Index, Plan

Carriers = dict[tuple[str, str], frozenset[str]]  # (operator, index) -> the operands that are partial sums along it


def spread(plan: Plan) -> tuple[Plan, Carriers]:
    """The plan in which scalar linear operators carry the indices along which their inputs are partial sums."""
    carriers: Carriers = {}
    partial: dict[str, dict[str, Index]] = {}  # value -> indices along which it is a partial sum
    indices = dict(plan.indices)
    for operator in plan.graph.operators:
        if operator.stage is not Stage.COMPUTE:
            continue
        own = indices.get(operator.name, ())
        if taken := _taken(operator, own, partial, plan.graph):
            own = indices[operator.name] = (*own, *taken)
            for index in taken:
                carrying = (o.value for o in operator.inputs if index.name in partial.get(o.value, {}))
                carriers[operator.name, index.name] = frozenset(carrying)
        sums = {i.name: i for i in own if i.dim == LINEAR or operator.summed(i.dim)}
        for output in operator.outputs:
            partial[output.value] = sums
    return replace(plan, indices=indices), carriers


def _taken(
    operator: Operator, own: tuple[Index, ...], partial: dict[str, dict[str, Index]], graph: Graph
) -> tuple[Index, ...]:
    if not row(operator).linear_in or any(graph.values[o.value].shape for o in operator.outputs):
        return ()
    names = {i.name for i in own}
    sums = [partial.get(o.value, {}) for o in operator.inputs]
    taken = {n: i for s in sums for n, i in s.items() if n not in names}
    return tuple(replace(i, dim=LINEAR) for n, i in taken.items() if _linear(operator, n, sums))


def _linear(operator: Operator, index: str, sums: list[dict[str, Index]]) -> bool:
    carrying = [at for at, s in enumerate(sums) if index in s]
    return is_linear(operator, carrying)
