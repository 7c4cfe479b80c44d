"""What autograd saves of a call, measured: torch runs it once on meta tensors, and its hooks say what they are given.

A call is measured once for each distinct signature (shapes, strides, dtypes, which require a gradient, arguments), so
a model of 96 equal layers costs as much as one of two.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ssdsl.model.graph import ITEMSIZE, Operand, Order, Ref, Value
from ssdsl.model.memory_order import strides_in
from ssdsl.model.ops.reader import Reader
from ssdsl.model.saved_tensors import Extra, Saved
from ssdsl.model.storage import filled, memory_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor without its numbers. Sizes and strides in elements."""

    shape: Shape
    strides: Shape
    dtype: str
    requires_grad: bool

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE.get(self.dtype, 4)

    def empty(self) -> torch.Tensor:
        """A meta tensor like it."""
        tensor = torch.empty_strided(self.shape, self.strides, dtype=getattr(torch, self.dtype), device="meta")
        return tensor.requires_grad_(self.requires_grad)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Which inputs and outputs, by number, autograd keeps, and the bytes of the other tensors that it keeps."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediate_bytes: tuple[int, ...]


def measured(reader: Reader) -> Saved:
    """What autograd saves of a call, in its local sizes."""
    operator, values = reader.operator, reader.graph.values
    kinds = dict.fromkeys((o.value, reader.shape(o.axes)) for o in operator.inputs)  # a value may be read in two parts
    first = {(o.value, reader.shape(o.axes)): o for o in reversed(operator.inputs)}
    orders = dict(zip(operator.refs(), operator.orders, strict=False))
    specs = tuple(_spec(reader, first[kind], values[kind[0]], orders.get(kind[0])) for kind in kinds)
    order = {kind: number for number, kind in enumerate(kinds)}
    numbers = iter([order[o.value, reader.shape(o.axes)] for o in operator.inputs])  # as the call refers to them
    target, *args = numbered(operator.args, numbers)
    shapes = tuple(reader.shape(o.axes) for o in operator.outputs)
    is_whole = not any(map(reader.is_split, range(len(operator.dims))))
    arguments = tuple(args) if is_whole else _local(target, tuple(args), shapes, specs)
    found = measure(target, arguments, numbered(operator.kwargs, numbers), specs)
    names = [value for value, _ in kinds]
    return Saved(
        tuple(dict.fromkeys(names[i] for i in found.inputs)),
        tuple(operator.outputs[i].value for i in found.outputs),
        tuple(Extra(_what(n, specs), n) for n in found.intermediate_bytes),
    )


def measured_or_all(reader: Reader) -> Saved:
    """As `measured`; of an operator that does not run on tensors without numbers, all that it reads and makes."""
    try:
        return measured(reader)
    except Exception:  # whatever an operator raises
        operator = reader.operator
        return Saved(tuple(dict.fromkeys(o.value for o in operator.inputs)), tuple(o.value for o in operator.outputs))


def _what(size_bytes: int, specs: tuple[Spec, ...]) -> str:
    """A name for reports: what is as large as an operand is taken for a copy of it."""
    return "copy" if size_bytes in {s.size_bytes for s in specs} else "intermediate"


@cache
def measure(
    target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], specs: tuple[Spec, ...]
) -> Measurement:
    """Run a call on meta tensors; `Ref("0")` in the arguments stands for the first of `specs`."""
    given = [s.empty() for s in specs]
    tensors = {str(i): t for i, t in enumerate(given)}
    kept: dict[int, torch.Tensor] = {}  # by the memory, so that views of one tensor count once

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(memory_of(tensor), tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = target(*filled(args, tensors), **{k: filled(v, tensors) for k, v in kwargs})
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    own = {memory_of(t): i for i, t in reversed(list(enumerate(given)))}
    made = {memory_of(t): i for i, t in reversed(list(enumerate(results))) if isinstance(t, torch.Tensor)}
    return Measurement(
        tuple(own[m] for m in kept if m in own),
        tuple(made[m] for m in kept if m in made and m not in own),
        tuple(t.untyped_storage().nbytes() for m, t in kept.items() if m not in own and m not in made),
    )


def numbered(item: Any, numbers: Iterator[int]) -> Any:
    """Arguments whose references are numbers, so that equal calls of several layers are equal."""
    match item:
        case Ref():
            return Ref(str(next(numbers)))
        case tuple() | list():
            return tuple(numbered(i, numbers) for i in item)
    return item


def _spec(reader: Reader, operand: Operand, value: Value, order: Order | None) -> Spec:
    requires_grad = value.differentiable and value.dtype.startswith(("float", "bf", "complex"))
    shape = reader.shape(operand.axes)
    strides = local_strides(value.shape, reader.places[value.name].strides, shape)
    return Spec(shape, strides if order is None else strides_in(order, shape), value.dtype, requires_grad)


def local_strides(whole: Sequence[int], strides: Sequence[int], part: Sequence[int]) -> Shape:
    """The strides of a part that is laid out as the whole is: what lies inside an axis shrinks its stride.

    >>> local_strides((2, 8, 4), (32, 4, 1), (2, 4, 4))  # heads cut in two
    (16, 4, 1)
    >>> local_strides((2, 4, 8), (32, 1, 4), (2, 4, 4))  # the same, transposed
    (16, 1, 4)
    """
    found = []
    for stride in strides:
        for other, n, m in zip(strides, whole, part, strict=True):
            if 0 < other < stride and n:
                stride = -(-stride * m // n)
        found.append(stride)
    return tuple(found)


def _local(target: Any, args: tuple[Any, ...], outputs: tuple[Shape, ...], specs: tuple[Spec, ...]) -> tuple[Any, ...]:
    """The arguments of a part: those that are sizes of a result are local ones."""
    match target.name():
        case "aten::reshape" | "aten::expand":
            return (args[0], outputs[0], *args[2:])
        case "aten::split.Tensor":
            at = int(args[2]) if len(args) > 2 else 0
            return (args[0], outputs[0][at], *args[2:])
        case "aten::split_with_sizes":
            at = int(args[2]) if len(args) > 2 else 0
            return (args[0], tuple(shape[at] for shape in outputs), *args[2:])
    return args
