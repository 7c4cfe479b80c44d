"""Where values lie: which of them share memory, and in which strides, in the program of the unsplit model.

A view (a transpose, a slice, most reshapes) costs nothing, and whoever keeps it keeps all of the tensor it looks into.
Whether a reshape is a view depends on the strides of what it gets, so the whole graph is followed, on tensors without
numbers. A part of a tensor is laid out as the whole is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssdsl.model.graph import Graph, Operator, Origin, Ref, Value


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a value: that of `root`, which is the value itself or what it is a view of; strides in elements."""

    root: str
    strides: tuple[int, ...]


def storages(graph: Graph) -> dict[str, Storage]:
    """The storage of every value."""
    tensors = {v.name: empty(v) for v in graph.values.values() if v.origin is not Origin.OPERATOR}
    for operator in graph.operators:
        results = _results(operator, tensors, graph)
        tensors.update((o.value, y) for o, y in zip(operator.outputs, results, strict=True))
    roots: dict[int, str] = {}
    return {n: Storage(roots.setdefault(memory_of(t), n), t.stride()) for n, t in tensors.items()}


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


def filled(item: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """An argument of an operator, its references replaced by tensors."""
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
