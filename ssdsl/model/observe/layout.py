"""Where values lie: which of them share memory, and in which strides, in the program of the unsplit model.

Whether a reshape is a view depends on the strides of what it gets, so the whole graph is followed, on tensors without
numbers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ssdsl.model.graph import Graph, Operator, Origin
from ssdsl.model.observe.call import empty, filled, memory_of, results_of
from ssdsl.model.ops.saved_by_kernels import is_fused_attention
from ssdsl.model.storage import Storage
from ssdsl.runtime.cut import contiguous


class Laid(NamedTuple):
    """A result of a call: the first of what it reads and makes, by number, that lies in this memory; its strides."""

    memory: int
    strides: tuple[int, ...]


def storages(graph: Graph) -> dict[str, Storage]:
    """The storage of every value. Calls that differ in their values' names alone are run once."""
    given = [v for v in graph.values.values() if v.origin is not Origin.OPERATOR]
    places = {v.name: Storage(v.name, empty(v).stride()) for v in given}
    known: dict[tuple[Any, ...], tuple[Laid, ...]] = {}
    for operator in graph.operators:
        specs = _Specs(graph, places)
        call = filled(operator.args, specs), filled(operator.kwargs, specs), operator.orders
        if call not in known:
            known[call] = _laid(operator, tuple(specs), places, graph)
        names = *specs, *(o.value for o in operator.outputs)
        for output, laid in zip(operator.outputs, known[call], strict=True):
            looks_into = places.get(names[laid.memory])
            places[output.value] = Storage(looks_into.root if looks_into else output.value, laid.strides)
    return places


class _Specs(dict[str, tuple[Any, ...]]):
    """What tells an operator's calls apart of the values that they read, numbered in the order of the arguments."""

    def __init__(self, graph: Graph, places: Mapping[str, Storage]) -> None:
        self.graph, self.places = graph, places

    def __missing__(self, name: str) -> tuple[Any, ...]:
        value = self.graph.values[name]
        spec = len(self), value.shape, self.places[name].strides, value.dtype, value.differentiable
        return self.setdefault(name, spec)


def _laid(operator: Operator, reads: tuple[str, ...], places: Mapping[str, Storage], graph: Graph) -> tuple[Laid, ...]:
    """Where the results of a call lie that reads these values."""
    tensors = {name: empty(graph.values[name], places[name].strides) for name in reads}
    laid = {r: contiguous(tensors[r], order) for r, order in zip(operator.refs(), operator.orders, strict=False)}
    results = _results(operator, {**tensors, **laid}, graph)
    memories = [memory_of(t) for t in (*tensors.values(), *results)]
    return tuple(Laid(memories.index(memory_of(t)), t.stride()) for t in results)


def _results(operator: Operator, tensors: Mapping[str, torch.Tensor], graph: Graph) -> tuple[torch.Tensor, ...]:
    """As `results_of`; new tensors, if an operator without a row does not run on tensors without numbers."""
    try:
        results = results_of(operator, tensors)
        if _is_fused(operator, tensors, graph):  # it lays its result out as the queries are
            return (torch.empty_like(tensors[operator.inputs[0].value]),)
        return results
    except Exception:  # whatever an operator raises
        if operator.found is None:
            raise
    return tuple(empty(graph.values[o.value]) for o in operator.outputs)


def _is_fused(operator: Operator, tensors: Mapping[str, torch.Tensor], graph: Graph) -> bool:
    if operator.target != "aten::scaled_dot_product_attention":
        return False
    given = [tensors[o.value] for o in operator.inputs[:3]]
    masks = [graph.values[o.value] for o in operator.inputs[3:]]
    return is_fused_attention([t.shape for t in given], [t.stride(-1) for t in given], masks)
