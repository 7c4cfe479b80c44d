"""Where values lie: which of them share memory, and in which strides, in the program of the unsplit model.

A view (a transpose, a slice, most reshapes) costs nothing, and whoever keeps it keeps all of the tensor it looks into.
Whether a reshape is a view depends on the strides of what it gets, so the whole graph is followed, on tensors without
numbers. A part of a tensor is laid out as the whole is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ssdsl.model.graph import Graph, Operator, Origin, Ref, Value
from ssdsl.runtime.moves import contiguous


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a value: that of `root`, which is the value itself or what it is a view of; strides in elements."""

    root: str
    strides: tuple[int, ...]


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


def aliases(operator: Operator, places: Mapping[str, Storage]) -> dict[str, str]:
    """The outputs that are views, each with the input that it looks into."""
    inputs = {places[o.value].root: o.value for o in reversed(operator.inputs)}
    roots = {o.value: places[o.value].root for o in operator.outputs}
    return {output: inputs[root] for output, root in roots.items() if root in inputs}


def empty(value: Value, strides: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """A meta tensor shaped like a value, or like a part of it that has this shape."""
    dtype = getattr(torch, value.dtype)
    if strides is None:
        return torch.empty(value.shape, dtype=dtype, device="meta")
    return torch.empty_strided(value.shape if shape is None else shape, strides, dtype=dtype, device="meta")


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


def is_fused_attention(shapes: Sequence[Sequence[int]], ends: Iterable[int], masks: Iterable[Value]) -> bool:
    """Whether the CPU's fused kernel takes queries, keys and values of these shapes and last strides, after torch's
    `use_flash_attention_cpp`."""
    query, key, value = shapes
    return (
        len(query) == 4
        and query[-1] == key[-1] == value[-1]
        and query[0] == key[0] == value[0]
        and all(len(m.shape) in (2, 4) and not m.differentiable for m in masks)
        and set(ends) == {1}
    )


def results_of(operator: Operator, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What an operator makes of meta tensors, in the memory and strides that a CPU's kernel gives them."""
    target, *args = filled(operator.args, tensors)
    kwargs = {k: filled(v, tensors) for k, v in operator.kwargs}
    result = target(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def filled(item: Any, tensors: Mapping[str, Any]) -> Any:
    """An argument of an operator, its references replaced by tensors, or by what stands for them."""
    match item:
        case Ref(value):
            return tensors[value]
        case tuple():
            return tuple(filled(i, tensors) for i in item)
        case torch.device():
            return torch.device("meta")
    return item


def memory_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory, as long as the tensor lives."""
    return int(tensor.untyped_storage()._cdata)
