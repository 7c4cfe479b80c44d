"""Finds where the numbers of a step stop being finite: the first operators that make an infinity and a NaN."""

from collections.abc import Callable, Iterator

import torch

from ssdsl.model.checks.check_capture import outside_values, run_operator
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.load.model import Model

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"infinity": torch.isinf, "NaN": torch.isnan}


def first_not_finite(model: Model, graph: Graph) -> tuple[str, ...]:
    """A line for the first infinity and for the first NaN of the forward, with the weight, buffer or input that has
    it, or the operator that makes it and its place in the model's code."""
    found: dict[str, str] = {}
    with torch.no_grad():
        for where, tensor in _values(model, graph):
            for kind, has in KINDS.items():
                if kind not in found and tensor.is_floating_point() and bool(has(tensor).any()):
                    found[kind] = f"the first {kind} is in {where}"
            if "NaN" in found:
                break
    return tuple(found.values())


def _values(model: Model, graph: Graph) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the forward, in order, each with its place."""
    values = outside_values(model, graph)
    yield from ((f"`{name}`", tensor) for name, tensor in values.items())
    for operator in graph.operators:
        results = run_operator(operator, values)
        values |= results
        yield from ((_place(operator), tensor) for tensor in results.values())


def _place(operator: Operator) -> str:
    module = f" in module `{operator.path}`" if operator.path else ""
    return f"the result of `{operator.kind}`{module}, {operator.source}"
