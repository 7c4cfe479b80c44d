"""Finds steps that a comparison says nothing about, because the losses of both sides are NaN or infinite."""

import math

from ssdsl.model.checks.not_finite import first_not_finite
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.run.errors import NothingCompared
from ssdsl.run.verify.compare import Comparison


def compared_steps(comparisons: tuple[Comparison, ...]) -> tuple[int, int]:
    """The number of steps whose loss is finite on the single device, and the number of all steps."""
    losses = [c.expected for c in comparisons if c.kind == "loss" and not c.in_float64]
    return sum(map(math.isfinite, losses)), len(losses)


def nothing_compared(comparisons: tuple[Comparison, ...], model: Model, graph: Graph) -> NothingCompared | None:
    """The diagnostic if no step has a finite loss, with the place where the model's numbers stop being finite."""
    if compared_steps(comparisons)[0]:
        return None
    first = next(c for c in comparisons if c.kind == "loss")
    places = first_not_finite(model.with_numbers(), graph)
    return NothingCompared(None, str(first.expected), "\n".join(places))
