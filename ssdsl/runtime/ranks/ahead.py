"""Communication of weights beside computing (ZeRO-3): while one module computes, the weights of the next are on their
way, and in backward the gradients of the one before.

A task's gathers have an order, which the compiler knows. Behind the wait for one of them the next ones start, as many
as each flat parameter's `ahead` says; so the weights of that many further modules are in memory. All ranks of a group
start their gathers and reductions in one order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class TravellingWeights(Protocol):
    """A flat parameter whose weights are gathered, and whose gradients are reduced to their owners."""

    ahead: int

    def start_gather(self) -> None:
        """Starts a gather; the next reader of the flat parameter awaits it."""

    def take_scattered(self) -> None:
        """Awaits the reduction that is under way."""


class Ahead:
    """The gathers of the running task that nobody has awaited yet, in order, and the last reduction."""

    def __init__(self) -> None:
        self._order: list[tuple[int, TravellingWeights]] = []  # each with its number in the task
        self._started: set[int] = set()
        self._awaited = 0
        self._scattering: TravellingWeights | None = None

    @contextmanager
    def of_task(self, gathers: Sequence[TravellingWeights]) -> Iterator[None]:
        """A context for a task with these gathers."""
        self._order, self._started, self._awaited = [*enumerate(gathers)], set(), 0
        yield
        assert not self._started, "weights were gathered ahead for nobody"
        self._order = []

    def awaited(self, flat: TravellingWeights) -> None:
        """Starts the gathers that come behind the one of this flat parameter."""
        place = next((k for k, (_, other) in enumerate(self._order) if other is flat), None)
        if place is None:
            return
        number, _ = self._order.pop(place)
        self._started.discard(number)
        self._awaited += 1
        for number, other in self._order:
            if number not in self._started and number - other.ahead < self._awaited:
                self._started.add(number)
                other.start_gather()

    def scatters(self, flat: TravellingWeights | None) -> None:
        """Awaits the last reduction; this flat parameter has the next."""
        last, self._scattering = self._scattering, flat
        if last is not None:
            last.take_scattered()
