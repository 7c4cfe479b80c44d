"""Finds the loss in the results of a forward, and its other tensors by name.

A tensor is the loss itself. In an object it is `.loss`, in a dictionary `["loss"]`, and in a tuple or another
dictionary the only element that is one number of a floating-point type. Otherwise the user names the place as `loss`: a
name, the position in a tuple, or a function of the outputs and the batch. Several losses have a place each by their
names; the model's loss is their sum, and a step may train one of them. The capture, its checks and the run on a
single device all use these functions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ssdsl.record import Record
from ssdsl.runtime.data.batch import kind
from ssdsl.runtime.program.returned import Leaf, Step

Batch = Mapping[str, torch.Tensor]
Place = str | int | Callable[[Any, Batch], Any]
Where = Place | Mapping[str, Place] | None


class NoLoss(Exception):
    """The outputs have no loss where it should be; the text describes them."""


class NoSuchOutput(Exception):
    """A forward does not return a tensor of this name; `returned` has all that it returns."""

    def __init__(self, name: str, returned: tuple[Leaf, ...]) -> None:
        super().__init__(name)
        self.name, self.returned = name, returned


def loss_of(outputs: Any, batch: Batch, where: Where = None) -> Any:
    """The loss in a forward's outputs. Raises NoLoss.

    If `where` is a function, it may return anything, and the outputs may be of any type.

    >>> float(loss_of((torch.ones(2, 3), torch.tensor(0.5)), {}))
    0.5
    """
    match where:
        case None:
            return _only_loss(outputs)
        case str() | int():
            return _part(outputs, where)
        case Mapping():
            return sum(loss_of(outputs, batch, place) for place in where.values())
    return where(outputs, batch)


def reads_batch(where: Where) -> bool:
    """Whether a function finds the loss, or one of several: it gets the tensors of the batch that forward does not
    take."""
    return any(map(callable, where.values())) if isinstance(where, Mapping) else callable(where)


class Found(Record):
    """Outputs of a forward by name, and all that it returned there, also what is no tensor."""

    tensors: dict[str, torch.Tensor]
    leaves: tuple[Leaf, ...] = ()


def outputs_of(result: Any, wanted: tuple[str, ...] | None) -> Found:
    """The wanted outputs; all, if `wanted` is None. A tuple, list or dictionary in the result is wanted by its name, or
    one of its items by name and position. Raises NoSuchOutput.

    >>> outputs_of({"loss": torch.tensor(1.0), "logits": torch.zeros(2)}, ("logits",)).tensors
    {'logits': tensor([0., 0.])}
    >>> [*outputs_of((torch.tensor(1.0), {"a": torch.zeros(2), "b": 3}), None).tensors]
    ['0', '1.a']
    """
    if wanted == ():
        return Found({})
    every = [*_leaves(result)]
    returned = tuple(leaf for leaf, _ in every)
    for name in wanted or ():
        if not any(leaf.is_tensor and leaf.is_in(name) for leaf in returned):
            raise NoSuchOutput(name, returned)
    inside = [(leaf, v) for leaf, v in every if wanted is None or any(map(leaf.is_in, wanted))]
    return Found({leaf.name: value for leaf, value in inside if leaf.is_tensor}, tuple(leaf for leaf, _ in inside))


def _leaves(result: Any) -> Iterator[tuple[Leaf, Any]]:
    """The leaves of a result, each with its value. If it is a tensor, that is output 0."""
    if isinstance(result, torch.Tensor):
        yield Leaf((Step("tuple", 0),)), result
        return
    parts = _parts(result)
    for step, value in parts if parts is not None else _attributes(result):
        yield from _below((step,), value)


def _below(path: tuple[Step, ...], value: Any) -> Iterator[tuple[Leaf, Any]]:
    parts = _parts(value)
    if parts is None:
        yield Leaf(path, "" if isinstance(value, torch.Tensor) else kind(value)), value
        return
    for step, part in parts:
        yield from _below((*path, step), part)


def _attributes(result: Any) -> list[tuple[Step, Any]]:
    return [(Step("dict", name), value) for name, value in getattr(result, "__dict__", {}).items()]


def _parts(value: Any) -> list[tuple[Step, Any]] | None:
    """The parts of a container, each with the step to it; None for anything else."""
    match value:
        case Mapping():
            return [(Step("dict", name if isinstance(name, int) else str(name)), p) for name, p in value.items()]
        case tuple() if hasattr(value, "_fields"):
            return [(Step("dict", name), p) for name, p in zip(getattr(value, "_fields", ()), value, strict=True)]
        case tuple() | list():
            word = "list" if isinstance(value, list) else "tuple"
            return [(Step(word, at), p) for at, p in enumerate(value)]
        case SimpleNamespace():
            return _attributes(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return [(Step("dict", f.name), getattr(value, f.name)) for f in fields(value)]
    return None


def _part(result: Any, name: str | int) -> Any:
    """One part of a result; an attribute may also be a property. Raises NoLoss."""
    try:
        is_attribute = isinstance(name, str) and not isinstance(result, Mapping)
        return getattr(result, str(name)) if is_attribute else result[name]
    except (AttributeError, LookupError, TypeError):
        raise NoLoss(f"{_described(result)}, without {name!r}") from None


def _only_loss(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping) and "loss" in outputs:
        return outputs["loss"]
    if hasattr(outputs, "loss"):
        if outputs.loss is None:
            raise NoLoss(f"{_kind(outputs)} whose `.loss` is None (does the batch have `labels`?)")
        return outputs.loss
    if not isinstance(outputs, (tuple, list, Mapping)):
        raise NoLoss(_kind(outputs))
    values = [value for _, value in _parts(outputs) or ()]
    numbers = [v for v in values if isinstance(v, torch.Tensor) and v.dim() == 0 and v.is_floating_point()]
    if len(numbers) == 1:
        return numbers[0]
    raise NoLoss(f"{_many(len(values))}, {f'{len(numbers)} of them single numbers' if numbers else 'no single number'}")


def _described(outputs: Any) -> str:
    match outputs:
        case torch.Tensor():
            return "a tensor"
        case Mapping():
            return f"results called {', '.join(map(str, outputs)) or 'nothing'}"
        case tuple() | list():
            return _many(len(outputs))
    return _kind(outputs)


def _many(count: int) -> str:
    return f"{count} result{'' if count == 1 else 's'}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of {type(value).__name__}"
