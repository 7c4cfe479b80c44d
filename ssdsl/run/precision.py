"""Autocast in the module that is the reference: whether it occurs, and the same module without it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.amp.autocast_mode import autocast

Begin = Callable[[Any], Any]


@contextlib.contextmanager
def autocast_seen() -> Iterator[list[Any]]:
    """The precisions of the enabled autocast regions that begin in the meantime."""
    seen: list[Any] = []

    def begin(known: Begin, region: Any) -> Any:
        if region._enabled:
            seen.append(region.fast_dtype)
        return known(region)

    with _instead(begin):
        yield seen


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """Regions of autocast cast nothing in the meantime."""

    def begin(known: Begin, region: Any) -> Any:
        region._enabled = False
        return known(region)

    with _instead(begin):
        yield


@contextlib.contextmanager
def _instead(begin: Callable[[Begin, Any], Any]) -> Iterator[None]:
    known = autocast.__enter__
    setattr(autocast, "__enter__", lambda region: begin(known, region))  # noqa: B010
    try:
        yield
    finally:
        setattr(autocast, "__enter__", known)  # noqa: B010
