"""Communication of weights beside computing (ZeRO-3): while one module computes, the weights of the next are on their
way, and in backward the gradients of the one before.

The modules of a task gather in an order, which the compiler knows. Behind the wait for one module's weights those of
the next ones start, as many as each flat parameter's `ahead` says; so the weights of that many further modules are in
memory. All ranks of a group start their gathers and reductions in one order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class TravellingWeights(Protocol):
    """A flat parameter whose weights are gathered."""

    ahead: int

    def start_gather(self) -> None:
        """Starts a gather; the next reader of the flat parameter awaits it."""


@dataclass(eq=False)
class _Gather:
    """A gather of the module with this number in a task."""

    module: int
    flat: TravellingWeights
    started: bool = False


class TravelsAhead:
    """The gathers of the running task that nobody has awaited yet, in order, and the last reduction."""

    def __init__(self) -> None:
        self._coming: list[_Gather] = []
        self._reached = -1  # the last module whose weights were awaited
        self._last: Callable[[], None] | None = None  # awaits the last reduction

    @contextmanager
    def of_task(self, gathers: Sequence[Sequence[TravellingWeights]]) -> Iterator[None]:
        """A context for a task whose modules gather these."""
        self._coming = [_Gather(module, flat) for module, flats in enumerate(gathers) for flat in flats]
        self._reached = -1
        try:
            yield
            assert not any(gather.started for gather in self._coming), "weights were gathered ahead for nobody"
        finally:
            self._coming = []

    def awaited(self, flat: TravellingWeights) -> None:
        """Starts the gathers that come behind the one of this flat parameter."""
        gather = next((gather for gather in self._coming if gather.flat is flat), None)
        if gather is None:
            return
        self._coming.remove(gather)
        self._reached = max(self._reached, gather.module)
        for gather in self._coming:
            if not gather.started and gather.module - gather.flat.ahead <= self._reached:
                gather.started = True
                gather.flat.start_gather()

    def reduces(self, awaits: Callable[[], None]) -> None:
        """Awaits the last reduction of gradients to their owners, before the next one starts, which `awaits` waits for:
        few gradients are in memory as a whole."""
        last, self._last = self._last, awaits
        if last is not None:
            last()
