"""Finds the loss in the results of a forward, and its other tensors by name.

A tensor is the loss itself. In an object it is `.loss`, in a dictionary `["loss"]`, and in a tuple or another
dictionary the only element that is one number of a floating-point type. Otherwise the user names the place as `loss`: a
name, the position in a tuple, or a function of the outputs and the batch. The capture, its checks and the run on a
single device all use these functions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Batch = Mapping[str, torch.Tensor]
Where = str | int | Callable[[Any, Batch], Any] | None


class NoLoss(Exception):
    """The outputs have no loss where it should be; the text describes them."""


class NoSuchOutput(Exception):
    """A forward does not return a tensor of this name; `known` are the names of those that it returns."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.known = name, known


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
    return where(outputs, batch)


def outputs_of(result: Any, wanted: tuple[str, ...] | None) -> dict[str, torch.Tensor]:
    """The wanted outputs by name; all, if `wanted` is None. Raises NoSuchOutput.

    >>> outputs_of({"loss": torch.tensor(1.0), "logits": torch.zeros(2)}, ("logits",))
    {'logits': tensor([0., 0.])}
    >>> outputs_of((torch.tensor(1.0), torch.zeros(2)), ("1",))
    {'1': tensor([0., 0.])}
    """
    parts = _parts(result) if wanted != () else {}
    found = {str(name): value for name, value in parts.items() if isinstance(value, torch.Tensor)}
    if missing := [name for name in wanted or () if name not in found]:
        raise NoSuchOutput(missing[0], tuple(found))
    return found if wanted is None else {name: found[name] for name in wanted}


def _parts(result: Any) -> dict[Any, Any]:
    """The parts of a result by key, attribute or position; a tensor has none."""
    match result:
        case torch.Tensor():
            return {}
        case Mapping():
            return dict(result)
        case tuple() if hasattr(result, "_fields"):
            return dict(zip(getattr(result, "_fields", ()), result, strict=True))
        case tuple() | list():
            return dict(enumerate(result))
    return dict(getattr(result, "__dict__", {}))


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
    values = list(_parts(outputs).values())
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
