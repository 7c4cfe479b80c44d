"""Weights in parts (ZeRO-3) and their gradients in a task: what travels while it computes.

A section waits for what it gathers. Behind that wait the gathers of the next ones start, as many as `prefetch` says. In
backward the gradients of a section are reduced while the next one computes, and awaited in front of the next reduction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ssdsl.analyse.collectives import OfGather, SizedCollective, TaskCollective, of_backward, of_gather
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function, reads_of
from ssdsl.ir.uses import InstrPlace
from ssdsl.lower.params.regathered import GatherStep
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.overlap import Awaits, Begins, Event


@dataclass
class _Gather:
    """A gather: where its reader is, its number among the collectives, and its place in the order of gathers, if some
    start ahead."""

    at: InstrPlace
    number: int
    group: int | None
    ahead: int
    begun: bool = False


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
    _gathers: list[_Gather] = field(default_factory=list)
    _reduces: dict[InstrPlace, list[list[int]]] = field(default_factory=dict)
    _reducing: list[int] = field(default_factory=list)  # those that nobody has awaited yet

    def __post_init__(self) -> None:
        order = self.function.ahead.forward if self.phase is Phase.FORWARD else self.function.ahead.backward
        groups = iter([group for group, those in enumerate(order) for _ in those])
        for step in self._forward() if self.phase is Phase.FORWARD else self.facts.regathered(self.function).steps:
            flat = self.facts.program.flats[step.gather[1]]
            calls = of_backward(flat, self.facts.state) if step.reduces else [of_gather(flat)]
            first = len(self.collectives)
            self.collectives += [TaskCollective(call, OfGather(*step.gather)) for call in calls]
            if step.reduces:
                self._reduces.setdefault(step.at, []).append([*range(first, len(self.collectives))])
            else:
                self._gathers.append(_Gather(step.at, first, next(groups, None), flat.ahead))

    def _forward(self) -> Iterator[GatherStep]:
        """Yields the gathers, each at the first instruction that reads one of its weights."""
        for number, section in enumerate(self.function.sections):
            first: dict[str, int] = {}
            for n, instr in enumerate(section.body if section.gathers else ()):
                for name in reads_of(instr):
                    first.setdefault(name.value, n)
            for flat in section.gathers:
                read = min(first[w] for w in self.facts.program.flats[flat].weights if w in first)
                yield GatherStep(InstrPlace(number, read), (number, flat))

    def before(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the waits for what an instruction reads first, and the gathers that start behind these."""
        for gather in self._at.get(at, ()):
            yield from self._begins(gather)
            yield Awaits(gather.number)
            if gather.group is not None:
                for later in self._gathers:
                    if later.group is not None and later.group - later.ahead <= gather.group:
                        yield from self._begins(later)

    def behind(self, at: InstrPlace) -> Iterator[Event]:
        """Yields the reductions of gradients that the backward of an instruction completes."""
        for numbers in self._reduces.get(at, ()):
            yield from map(Awaits, self._reducing)
            yield from (self._event(number) for number in numbers)
            self._reducing = numbers

    @cached_property
    def _at(self) -> dict[InstrPlace, list[_Gather]]:
        found: dict[InstrPlace, list[_Gather]] = {}
        for gather in self._gathers:
            found.setdefault(gather.at, []).append(gather)
        return found

    def _begins(self, gather: _Gather) -> Iterator[Event]:
        if not gather.begun:
            gather.begun = True
            yield self._event(gather.number)

    def _event(self, number: int) -> Event:
        call = self.collectives[number].call
        return Begins(number, call.axes, self.seconds(call))
