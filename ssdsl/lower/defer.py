"""Lets gradients stay partial sums on their way to weights, where nothing but weights lies behind them.

The backward of every operator is linear in the gradient. An operator that depends on weights only (a position
embedding, a relative position bias) can therefore take a partial gradient and hand on partial ones: the sum is taken
once, with the gradients of all other weights.
"""

from dataclasses import replace

from ssdsl.lower.cuts import OperandLayout, OperatorCut, operand_layout
from ssdsl.lower.layout import PARTIAL, REPLICATE, Layout, Submesh
from ssdsl.model.graph import Operator, Stage
from ssdsl.model.weight_values import weight_values
from ssdsl.plan.plan import Plan

Axes = frozenset[str]


def defer(plan: Plan, submeshes: dict[str, Submesh], cuts: dict[str, tuple[OperatorCut, ...]]) -> dict[str, Axes]:
    """For each operator on weights only, the mesh axes along which the gradients of its outputs stay partial sums."""
    operators = [o for o in plan.graph.operators if o.stage is Stage.COMPUTE]
    consumers: dict[str, list[Operator]] = {}
    for operator in operators:
        for operand in operator.inputs:
            consumers.setdefault(operand.value, []).append(operator)
    alone = weight_values(plan.graph)
    found: dict[str, Axes] = {}
    for operator in reversed(operators):
        if not all(o.value in alone for o in operator.outputs):
            continue
        users = [c for o in operator.outputs for c in consumers.get(o.value, ())]
        if any(submeshes[c.name] != submeshes[operator.name] for c in users):
            continue
        split = {c.index for c in cuts[operator.name]}
        axes = {a for user in users for a in _partial(user, operator, cuts, submeshes, found)}
        if axes - split:
            found[operator.name] = frozenset(axes - split)
    return found


def _partial(
    user: Operator,
    producer: Operator,
    cuts: dict[str, tuple[OperatorCut, ...]],
    submeshes: dict[str, Submesh],
    found: dict[str, Axes],
) -> set[str]:
    axes = submeshes[user.name].axes
    outputs = {o.value for o in producer.outputs}
    names: set[str] = set()
    for operand in (o for o in user.inputs if o.value in outputs):
        need = operand_layout(user, cuts[user.name], operand, axes, is_output=False)
        names |= {a for (a, _), p in zip(axes, need.gradient.places, strict=True) if p is PARTIAL}
    return names | found.get(user.name, frozenset())


def with_partial(layout: OperandLayout, axes: tuple[tuple[str, int], ...], partial: Axes) -> OperandLayout:
    """The layout with its gradient a partial sum along some axes on which it would be replicated."""
    if not partial:
        return layout
    places = tuple(
        PARTIAL if a in partial and p is REPLICATE else p
        for (a, _), p in zip(axes, layout.gradient.places, strict=True)
    )
    return replace(layout, gradient=Layout(places))
