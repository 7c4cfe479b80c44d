"""What a forward returns beside its loss: tensors by name."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class NoSuchOutput(Exception):
    """A forward does not return a tensor of this name; `known` are the names of those that it returns."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.known = name, known


def outputs_of(result: Any, wanted: tuple[str, ...] | None) -> dict[str, torch.Tensor]:
    """The wanted outputs, all for None. Raises NoSuchOutput.

    >>> outputs_of({"loss": torch.tensor(1.0), "logits": torch.zeros(2)}, ("logits",))
    {'logits': tensor([0., 0.])}
    >>> outputs_of((torch.tensor(1.0), torch.zeros(2)), ("1",))
    {'1': tensor([0., 0.])}
    """
    found = dict(_named(result)) if wanted != () else {}
    if missing := [name for name in wanted or () if name not in found]:
        raise NoSuchOutput(missing[0], tuple(found))
    return found if wanted is None else {name: found[name] for name in wanted}


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
