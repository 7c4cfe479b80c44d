"""Which values have a gradient: those from which the loss follows through differentiable operators."""

from dataclasses import replace

from ssdsl.lower.lowering import Lowering


def find_gradients(lowering: Lowering) -> Lowering:
    """Adds `learning`. On one device all other values are left without a gradient, and weights among them as they are:
    what requires a gradient but is read under `no_grad` or behind `detach` only."""
    values = lowering.graph.values
    learning = {lowering.graph.loss} if values[lowering.graph.loss].differentiable else set()
    for operator in reversed(lowering.graph.operators):
        if any(o.value in learning for o in operator.outputs):
            learning.update(o.value for o in operator.inputs if values[o.value].differentiable)
    return replace(lowering, learning=frozenset(learning))
