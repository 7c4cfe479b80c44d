"""Finds the values that have a gradient: the loss follows from them through differentiable operators."""

from dataclasses import replace

from ssdsl.lower.lowering import Lowering


def find_gradients(lowering: Lowering) -> Lowering:
    """Adds `learning`, which is empty where nothing trains."""
    return replace(lowering, learning=lowering.graph.learning if lowering.trains else frozenset())
