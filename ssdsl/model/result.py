"""What a forward returns: its loss, and other tensors by name."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class NoSuchOutput(Exception):
    """A forward does not return a tensor of this name; `known` are the names of those that it returns."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.known = name, known


def loss_of(result: Any) -> Any:
    """What a program trains on: the result, or its `loss`."""
    return getattr(result, "loss", result)


def evaluated(result: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """The loss, and the wanted outputs in their order. Raises NoSuchOutput.

    >>> evaluated({"loss": torch.tensor(1.0), "logits": torch.zeros(2)}, ("logits",))
    (tensor(1.), tensor([0., 0.]))
    >>> evaluated((torch.tensor(1.0), torch.zeros(2)), ("1",))
    (tensor(1.), tensor([0., 0.]))
    """
    found = dict(_named(result))
    if missing := [name for name in wanted if name not in found]:
        raise NoSuchOutput(missing[0], tuple(found))
    if isinstance(result, torch.Tensor):
        loss: Any = result
    else:
        loss = found.get("loss", found.get("0", result))
    return (loss, *(found[name] for name in wanted))


def _named(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a result: by key, by attribute, by position."""
    match result:
        case torch.Tensor():
            items: Any = ()
        case Mapping():
            items = result.items()
        case tuple() if hasattr(result, "_fields"):
            items = zip(getattr(result, "_fields", ()), result, strict=True)
        case tuple() | list():
            items = enumerate(result)
        case _:
            items = getattr(result, "__dict__", {}).items()
    return ((str(name), value) for name, value in items if isinstance(value, torch.Tensor))
