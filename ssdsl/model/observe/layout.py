"""Finds the memory and the strides of values in the program of the unsplit model.

Whether a reshape is a view depends on the strides of its operand, so the whole graph is run, on meta tensors. Where a
CPU may have one kernel for the operator (attention), its result lies as that kernel lays it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ssdsl.model.graph import Graph, Operator, Origin
from ssdsl.model.memory.storage import Storage
from ssdsl.model.observe.call import empty, fake_tensors, filled, memory_of, results_of
from ssdsl.model.ops.registry import is_own
from ssdsl.runtime.layout.cut import contiguous


class Laid(NamedTuple):
    """The layout of a call's result: the number of the first value that has this memory, inputs before results; its
    strides."""

    memory: int
    strides: tuple[int, ...]


def storages(graph: Graph) -> dict[str, Storage]:
    """The storage of every value. Calls that differ only in the names of their values are run once."""
    given = [v for v in graph.values.values() if v.origin is not Origin.OPERATOR]
    with torch.device("meta"):
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
    """The specs of the values that a call reads, numbered in the order of its arguments; equal for equal calls."""

    def __init__(self, graph: Graph, places: Mapping[str, Storage]) -> None:
        self.graph, self.places = graph, places

    def __missing__(self, name: str) -> tuple[Any, ...]:
        value = self.graph.values[name]
        spec = len(self), value.shape, self.places[name].strides, value.dtype, value.differentiable
        return self.setdefault(name, spec)


def _laid(operator: Operator, reads: tuple[str, ...], places: Mapping[str, Storage], graph: Graph) -> tuple[Laid, ...]:
    """The layouts of the results of a call that reads these values."""
    with fake_tensors(operator.args[0], like_cpu=_has_kernel_of_cpu(operator)):
        tensors = {name: empty(graph.values[name], places[name].strides) for name in reads}
        laid = {r: contiguous(tensors[r], order) for r, order in zip(operator.refs(), operator.orders, strict=False)}
        results = _results(operator, {**tensors, **laid}, graph)
    memories = [memory_of(t) for t in (*tensors.values(), *results)]
    return tuple(Laid(memories.index(memory_of(t)), t.stride()) for t in results)


def _results(operator: Operator, tensors: Mapping[str, torch.Tensor], graph: Graph) -> tuple[torch.Tensor, ...]:
    """As `results_of`; new tensors, if a user's operator does not run on such tensors."""
    try:
        return results_of(operator, tensors)
    except Exception:  # an operator may raise anything
        if is_own(operator.row):
            raise
    return tuple(empty(graph.values[o.value]) for o in operator.outputs)


def _has_kernel_of_cpu(operator: Operator) -> bool:
    return operator.row.fused is not None
