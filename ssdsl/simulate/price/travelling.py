"""Weights in parts (ZeRO-3) and their gradients in a task: what travels while it computes.

A section waits for what it gathers. Behind that wait the gathers of the next ones start, as many as `prefetch` says. In
backward the gradients of a section are reduced while the next one computes, and awaited in front of the next reduction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ssdsl.analyse.collectives import OfGather, SizedCollective, TaskCollective, of_backward, of_gather
from ssdsl.analyse.gathers import Staying, gather_axes
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function, starts_of_gathers
from ssdsl.ir.uses import InstrPlace
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.overlap import Awaits, Begins, Event

Seconds = Callable[[SizedCollective], float]


@dataclass
class Travelling:
    """The gathers and reductions of one task, forward or a whole backward; `collectives` are those of each step, in
    order, and known by their numbers. `before` and `behind` are called for all places in the order of the task."""

    facts: ProgramIndex
    function: Function
    phase: Phase
    stay: Staying
    seconds: Seconds
    collectives: list[TaskCollective] = field(default_factory=list)
    _gathers: dict[InstrPlace, list[int]] = field(default_factory=dict)  # by the place that awaits them
    _reduces: dict[InstrPlace, list[list[int]]] = field(default_factory=dict)
    _starts: dict[int, list[int]] = field(default_factory=dict)  # by a gather, those that start when it is awaited
    _calls: dict[int, int] = field(default_factory=dict)  # by a gather, its collective; none if its weights stay
    _reducing: list[int] = field(default_factory=list)  # those that nobody has awaited yet

    def __post_init__(self) -> None:
        is_forward, flats = self.phase.is_forward, self.facts.program.flats
        gathers = 0
        steps = self.facts.gather_steps(self.function, self.phase)
        for step, axes in gather_axes(steps, flats, self.stay):
            flat, first = flats[step.gather[1]], len(self.collectives)
            calls = of_backward(flat, self.facts.state) if step.reduces else [of_gather(flat, axes)] if axes else []
            self.collectives += [TaskCollective(call, OfGather(*step.gather)) for call in calls]
            if step.reduces:
                self._reduces.setdefault(step.at, []).append([*range(first, len(self.collectives))])
                continue
            self._gathers.setdefault(step.at, []).append(gathers)
            if axes:
                self._calls[gathers] = first
            gathers += 1
        groups = self.function.ahead.forward if is_forward else self.function.ahead.backward
        self._starts = dict(enumerate(starts_of_gathers(gathers, groups, lambda flat: flats[flat].ahead)))

    def before(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the waits for what an instruction reads first, and the gathers that start behind these."""
        for gather in self._gathers.get(at, ()):
            begun = self._starts[gather]
            yield from (self._begins(self._calls[n]) for n in begun if n == gather and n in self._calls)
            if gather in self._calls:
                yield Awaits(self._calls[gather])
            yield from (self._begins(self._calls[n]) for n in begun if n != gather and n in self._calls)

    def behind(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the reductions of gradients that the backward of an instruction completes."""
        for numbers in self._reduces.get(at, ()):
            yield from map(Awaits, self._reducing)
            yield from map(self._begins, numbers)
            self._reducing = numbers

    def _begins(self, number: int) -> Event:
        call = self.collectives[number].call
        return Begins(number, call.axes, self.seconds(call))
