"""Communication of weights beside computing (ZeRO-3): while one module computes, the weights of the next are on their
way, and in backward the gradients of the one before.

The modules of a task gather in an order, which the compiler knows. Behind the wait for one module's weights those of
the next ones start, as many as each flat parameter's `ahead` says; so the weights of that many further modules are in
memory. All ranks of a group start their gathers and reductions in one order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class TravellingWeights(Protocol):
    """A flat parameter whose weights are gathered, and whose gradients are reduced to their owners."""

    ahead: int

    def start_gather(self) -> None:
        """Starts a gather; the next reader of the flat parameter awaits it."""

    def take_scattered(self) -> None:
        """Awaits the reduction that is under way."""


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
        self._scattering: TravellingWeights | None = None

    @contextmanager
    def of_task(self, gathers: Sequence[Sequence[TravellingWeights]]) -> Iterator[None]:
        """A context for a task whose modules gather these."""
        self._coming = [_Gather(module, flat) for module, flats in enumerate(gathers) for flat in flats]
        self._reached = -1
        yield
        assert not any(gather.started for gather in self._coming), "weights were gathered ahead for nobody"
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

    def scatters(self, flat: TravellingWeights | None) -> None:
        """Awaits the last reduction; this flat parameter has the next."""
        last, self._scattering = self._scattering, flat
        if last is not None:
            last.take_scattered()
