"""Weights in parts (ZeRO-3) and their gradients in a task: what travels while it computes.

A section waits for what it gathers. Behind that wait the gathers of the next ones start, as many as `prefetch` says. In
backward the gradients of a section are reduced while the next one computes, and awaited in front of the next reduction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ssdsl.analyse.collectives import OfGather, SizedCollective, TaskCollective, of_backward, of_gather
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function, starts_of_gathers
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name
from ssdsl.lower.params.regathered import GatherStep
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
    seconds: Seconds
    collectives: list[TaskCollective] = field(default_factory=list)
    _gathers: dict[InstrPlace, list[int]] = field(default_factory=dict)  # by the place that awaits them
    _reduces: dict[InstrPlace, list[list[int]]] = field(default_factory=dict)
    _starts: dict[int, list[int]] = field(default_factory=dict)  # by a gather, those that start when it is awaited
    _reducing: list[int] = field(default_factory=list)  # those that nobody has awaited yet

    def __post_init__(self) -> None:
        is_forward, flats = self.phase.is_forward, self.facts.program.flats
        gathers: list[int] = []
        for step in self._forward() if is_forward else self.facts.regathered(self.function).steps:
            flat, first = flats[step.gather[1]], len(self.collectives)
            calls = of_backward(flat, self.facts.state) if step.reduces else [of_gather(flat)]
            self.collectives += [TaskCollective(call, OfGather(*step.gather)) for call in calls]
            if step.reduces:
                self._reduces.setdefault(step.at, []).append([*range(first, len(self.collectives))])
            else:
                self._gathers.setdefault(step.at, []).append(first)
                gathers.append(first)
        groups = self.function.ahead.forward if is_forward else self.function.ahead.backward
        starts = starts_of_gathers(len(gathers), groups, lambda flat: flats[flat].ahead)
        self._starts = {gather: [gathers[n] for n in begun] for gather, begun in zip(gathers, starts, strict=True)}

    def _forward(self) -> Iterator[GatherStep]:
        """Yields the gathers, each at the first instruction of its section that reads one of its weights."""
        readers = self.function.uses.readers
        for number, section in enumerate(self.function.sections):
            for flat in section.gathers:
                weights = self.facts.program.flats[flat].weights
                places = (at for w in weights for at in readers.get(Name(w), ()) if at.section == number)
                yield GatherStep(min(places), (number, flat))

    def before(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the waits for what an instruction reads first, and the gathers that start behind these."""
        for gather in self._gathers.get(at, ()):
            begun = self._starts[gather]
            yield from (self._begins(number) for number in begun if number == gather)
            yield Awaits(gather)
            yield from (self._begins(number) for number in begun if number != gather)

    def behind(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the reductions of gradients that the backward of an instruction completes."""
        for numbers in self._reduces.get(at, ()):
            yield from map(Awaits, self._reducing)
            yield from map(self._begins, numbers)
            self._reducing = numbers

    def _begins(self, number: int) -> Event:
        call = self.collectives[number].call
        return Begins(number, call.axes, self.seconds(call))
