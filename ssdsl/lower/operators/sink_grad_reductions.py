"""Leaves gradients partial on their way to weights, through operators that depend on weights only.

The backward of every operator is linear in the gradient. An operator on weights only (a position embedding, a relative
position bias) can therefore read a partial gradient and return partial ones: the sum is taken once, with the gradients
of all other weights. So can operators that repeat rows for `dispatch`: the gradients of a token's rows are added before
they travel.
"""

from dataclasses import replace

from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout
from ssdsl.ir.value import Type, names_of
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.operand_types import Axes, operand_types
from ssdsl.model.graph import Operator


def sink_grad_reductions(lowering: Lowering) -> Lowering:
    """Adds `sunk`: for each such operator, the axes and indices in time along which its outputs' gradients stay
    partial."""
    readers, alone, moving = lowering.graph.readers, lowering.graph.alone, lowering.graph.tails.dispatched
    sunk: dict[str, frozenset[str]] = {}
    for operator in reversed(lowering.graph.computing):
        if not (operator.name in moving or all(o.value in alone for o in operator.outputs)):
            continue
        users = [c for o in operator.outputs for c in readers.get(o.value, ())]
        if any(lowering.submeshes[c.name] != lowering.submeshes[operator.name] for c in users):
            continue
        split = {name for s in lowering.splits[operator.name] for name in names_of(s.coordinate)}
        axes = {a for user in users for a in _partial(lowering, user, operator, sunk)}
        if axes - split:
            sunk[operator.name] = frozenset(axes - split)
    return replace(lowering, sunk=sunk)


def _partial(lowering: Lowering, user: Operator, producer: Operator, sunk: dict[str, frozenset[str]]) -> set[str]:
    axes = lowering.submeshes[user.name].axes
    outputs = {o.value for o in producer.outputs}
    names: set[str] = set()
    for operand in (o for o in user.inputs if o.value in outputs):
        _, gradient = operand_types(user, lowering.splits[user.name], operand, axes, is_output=False)
        names |= {a for (a, _), p in zip(axes, gradient.layout.places, strict=True) if p is PARTIAL}
    return names | sunk.get(user.name, frozenset())


def with_sunk(gradient: Type, axes: Axes, partial: frozenset[str]) -> Type:
    """A gradient's type with the coordinates `partial` added: as PARTIAL on axes where it was replicated, and as owed
    along indices in time."""
    if not partial:
        return gradient
    time = tuple(sorted(partial - {a for a, _ in axes}))
    places = tuple(
        PARTIAL if a in partial and p is REPLICATE else p
        for (a, _), p in zip(axes, gradient.layout.places, strict=True)
    )
    return replace(gradient, layout=Layout(places), owed=(*gradient.owed, *time))
