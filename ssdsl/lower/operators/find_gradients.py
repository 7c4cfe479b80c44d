"""Which values have a gradient: those from which the loss follows through differentiable operators."""

from dataclasses import replace

from ssdsl.lower.lowering import Lowering


def find_gradients(lowering: Lowering) -> Lowering:
    """Adds `learning`, which is empty where nothing trains."""
    return replace(lowering, learning=lowering.graph.learning if lowering.trains else frozenset())
