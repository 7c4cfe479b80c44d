"""Where the loss is in what a forward returns: one rule for the capture, its checks and the single device.

A tensor is the loss itself. Of an object it is `.loss`, of a dictionary `["loss"]`, and of a tuple or another
dictionary the only element that is one number of a floating-point type. Where that does not say it, `loss` does: a
name, the position in a tuple, or a function of the outputs and the batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Batch = Mapping[str, torch.Tensor]
Where = str | int | Callable[[Any, Batch], Any] | None


class NoLoss(Exception):
    """The outputs have no loss where it should be; the text says what they are instead."""


def loss_of(outputs: Any, batch: Batch, where: Where = None) -> Any:
    """The loss of a forward's outputs, which may be of any type where `where` is a function.

    Raises NoLoss.

    >>> float(loss_of((torch.ones(2, 3), torch.tensor(0.5)), {}))
    0.5
    """
    match where:
        case None:
            return _found(outputs)
        case str() | int():
            return _named(outputs, where)
    return where(outputs, batch)


def _found(outputs: Any) -> Any:
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
    values = list(outputs.values() if isinstance(outputs, Mapping) else outputs)
    numbers = [v for v in values if isinstance(v, torch.Tensor) and v.dim() == 0 and v.is_floating_point()]
    if len(numbers) == 1:
        return numbers[0]
    raise NoLoss(f"{_many(len(values))}, {f'{len(numbers)} of them single numbers' if numbers else 'no single number'}")


def _named(outputs: Any, where: str | int) -> Any:
    try:
        if isinstance(where, str) and not isinstance(outputs, Mapping):
            return getattr(outputs, where)
        return outputs[where]
    except (AttributeError, LookupError, TypeError):
        raise NoLoss(f"{_members(outputs)} without {where!r}") from None


def _many(count: int) -> str:
    return f"{count} result{'' if count == 1 else 's'}"


def _members(outputs: Any) -> str:
    match outputs:
        case Mapping():
            return f"results called {', '.join(map(str, outputs)) or 'nothing'},"
        case tuple() | list():
            return f"{_many(len(outputs))},"
    return f"{_kind(outputs)},"


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of {type(value).__name__}"
