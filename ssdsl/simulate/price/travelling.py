"""Weights in parts (ZeRO-3) and their gradients in a task: what travels while it computes.

A section waits for what it gathers. Behind that wait the gathers of the next ones start, as many as `prefetch` says. In
backward the gradients of a section are reduced while the next one computes, and awaited in front of the next reduction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ssdsl.analyse.collectives import OfGather, TaskCollective, of_backward, of_gather
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function
from ssdsl.lower.params.regathered import BackwardStep
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.overlap import Awaits, Begins, Computes, Event


@dataclass
class Travelling:
    """The gathers and reductions of one task, forward or a whole backward; `collectives` are those of each step, in
    order."""

    facts: ProgramIndex
    function: Function
    phase: Phase
    collectives: list[TaskCollective] = field(init=False)
    _numbers: list[tuple[BackwardStep, list[int]]] = field(init=False)  # of the collectives of each step

    def __post_init__(self) -> None:
        self.collectives, self._numbers = [], []
        for step in self._steps():
            flat = self.facts.program.flats[step.gather[1]]
            calls = of_backward(flat, self.facts.state) if step.reduces else [of_gather(flat)]
            first = len(self.collectives)
            self.collectives += [TaskCollective(call, OfGather(*step.gather)) for call in calls]
            self._numbers.append((step, [*range(first, len(self.collectives))]))

    def _steps(self) -> Iterator[BackwardStep]:
        if self.phase is not Phase.FORWARD:
            yield from self.facts.regathered(self.function).steps
            return
        for number, section in enumerate(self.function.sections):
            yield from (BackwardStep(number, (number, flat), reduces=False) for flat in section.gathers)

    def events(self, sections: Sequence[float], times: Sequence[float]) -> Iterator[Event]:
        """Yields what the task does; `sections` are the seconds of each section, `times` those of each collective, by
        which number it is known."""
        of_sections = [step.section for step, _ in self._numbers if not step.reduces]
        place = {section: n for n, section in enumerate(dict.fromkeys(of_sections))}
        coming = [(place[step.section], numbers[0], step) for step, numbers in self._numbers if not step.reduces]
        begun, reducing = set[int](), list[int]()

        def begins(number: int) -> Event:
            begun.add(number)
            return Begins(number, self.collectives[number].call.axes, times[number])

        order = [*range(len(sections))]
        for section in order if self.phase is Phase.FORWARD else reversed(order):
            here = [(step, numbers) for step, numbers in self._numbers if step.section == section]
            for number in (numbers[0] for step, numbers in here if not step.reduces):
                if number not in begun:
                    yield begins(number)
                yield Awaits(number)
                for where, later, step in coming:
                    ahead = self.facts.program.flats[step.gather[1]].ahead
                    if later not in begun and where - ahead <= place[section]:
                        yield begins(later)
            yield Computes(sections[section])
            for numbers in (numbers for step, numbers in here if step.reduces):
                yield from map(Awaits, reducing)
                yield from map(begins, numbers)
                reducing = numbers
