"""Which results of a call, and which gradients that its backward makes, a collective may change in place: new tensors
that autograd does not keep. torch is asked, on tensors without numbers.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.ops.measured import Spec, numbered
from ssdsl.model.ops.registry import row
from ssdsl.model.storage import filled, memory_of

OWN_CALL = ("", "conv_part", "conv_transpose_part")  # kernels: a plain call, or one of what its windows read


@dataclass(frozen=True, slots=True)
class Overwritable:
    """Numbers of results, and of values read, in the order in which a call first reads them: their gradients."""

    results: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()


def overwritable(operator: Operator, graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """The results that may be overwritten, and the values that are read whose gradients may be, by their names.

    What does not run on tensors without numbers is what its row says.
    """
    names = tuple(dict.fromkeys(o.value for o in operator.inputs))
    outputs = tuple(o.value for o in operator.outputs)
    numbers = iter([names.index(o.value) for o in operator.inputs])
    target, *args = numbered(operator.args, numbers)
    found = _measured(target, tuple(args), numbered(operator.kwargs, numbers), tuple(_spec(n, graph) for n in names))
    if found is None:
        return (frozenset(outputs), frozenset(names)) if row(operator).fresh else (frozenset(), frozenset())
    return frozenset(outputs[i] for i in found.results), frozenset(names[i] for i in found.gradients)


def _spec(name: str, graph: Graph) -> Spec:
    value = graph.values[name]
    learns = value.differentiable and value.dtype.startswith(("float", "bf", "complex"))
    return Spec(value.shape, graph.storages[name].strides, value.dtype, learns)


@cache
def _measured(
    target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], specs: tuple[Spec, ...]
) -> Overwritable | None:
    """Runs a call and its backward; `Ref("0")` in the arguments stands for the first of `specs`."""
    given = [s.empty() for s in specs]
    tensors = {str(i): t for i, t in enumerate(given)}
    kept: list[torch.Tensor] = []  # alive to the end: freed memory is given to others

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.detach())
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = target(*filled(args, tensors), **{k: filled(v, tensors) for k, v in kwargs})
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        learning = [i for i, t in enumerate(given) if t.requires_grad]
        ends = [t for t in results if t.requires_grad]
        owed = [torch.empty_like(t) for t in ends]
        grads = torch.autograd.grad(ends, [given[i] for i in learning], owed, allow_unused=True) if learning else ()
    except Exception:  # whatever an operator raises
        return None
    taken = {memory_of(t) for t in (*kept, *given)}
    used = taken | {memory_of(t) for t in (*results, *owed)}
    pairs = [(i, memory_of(g)) for i, g in zip(learning, grads, strict=True) if g is not None]
    once = [memory for _, memory in pairs]
    return Overwritable(
        frozenset(i for i, t in enumerate(results) if memory_of(t) not in taken),
        frozenset(i for i, memory in pairs if memory not in used and once.count(memory) == 1),
    )
