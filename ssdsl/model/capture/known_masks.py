"""Gives a forward the positions of masks that are the same in every step: `scores[~eye]`, `x.masked_select(mask)`.

The number of positions that a mask selects is a shape that depends on values. Where these are known
(`known_numbers.py`) the positions are constants, and the forward indexes by them, which gives the same elements in the
same order.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ssdsl.model.capture.known_numbers import Constants, Unknown, known_positions

Positions = tuple[torch.Tensor, ...]  # along each axis of a mask


class Selecting(TorchFunctionMode):
    """A context in which a forward that is recorded selects by known masks."""

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        self.constants = constants

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The result of a function of torch."""
        if args and (rule := RULES.get(getattr(func, "__name__", ""))) is not None:
            with suppress(Unknown):
                return rule(self.constants, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _positions(mask: torch.Tensor, constants: Constants) -> Positions:
    """The positions of what is not zero, as constants of the graph; raises Unknown."""
    found = known_positions(mask, constants)
    return tuple(torch.tensor(along, dtype=torch.long, device=mask.device) for along in found)


def _index(constants: Constants, given: torch.Tensor, index: Any) -> Any:
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_mask, items)):
        raise Unknown
    taken: list[Any] = []
    for item in items:
        taken += _positions(item, constants) if _is_mask(item) else [item]
    return given[tuple(taken)]


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.bool and item.dim() > 0


def _masked_select(constants: Constants, given: Any, mask: Any, **kwargs: Any) -> Any:
    shape = torch.broadcast_shapes(given.shape, mask.shape)  # type: ignore[no-untyped-call]
    if not shape or kwargs:
        raise Unknown
    return given.expand(shape)[_positions(mask.expand(shape), constants)]


def _nonzero(constants: Constants, mask: Any, *, as_tuple: bool = False, **kwargs: Any) -> Any:
    if not mask.dim() or kwargs:
        raise Unknown
    found = _positions(mask, constants)
    return found if as_tuple else torch.stack(found, 1)


def _where(constants: Constants, *args: Any, **kwargs: Any) -> Any:
    if len(args) != 1:
        raise Unknown
    return _nonzero(constants, *args, as_tuple=True, **kwargs)


RULES: dict[str, Callable[..., Any]] = {  # each raises Unknown where it has no result
    "__getitem__": _index,
    "masked_select": _masked_select,
    "nonzero": _nonzero,
    "argwhere": _nonzero,
    "where": _where,
}
