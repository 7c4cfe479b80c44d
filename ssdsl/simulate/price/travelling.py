"""Weights in parts (ZeRO-3) and their gradients in a task: what travels while it computes.

A section waits for what it gathers. Behind that wait the gathers of the next ones start, as many as `prefetch` says. In
backward the gradients of a section are reduced while the next one computes, and awaited in front of the next reduction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ssdsl.analyse.collectives import OfGather, TaskCollective, of_backward, of_gather
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function, reads_of
from ssdsl.ir.uses import InstrPlace
from ssdsl.lower.params.regathered import GatherStep
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.overlap import Awaits, Begins, Computes, Event

Work = tuple[InstrPlace, float]  # seconds of computing, or of communication that blocks, at an instruction


@dataclass
class Travelling:
    """The gathers and reductions of one task, forward or a whole backward; `collectives` are those of each step, in
    order."""

    facts: ProgramIndex
    function: Function
    phase: Phase
    collectives: list[TaskCollective] = field(init=False)
    _numbers: list[tuple[GatherStep, list[int]]] = field(init=False)  # of the collectives of each step

    def __post_init__(self) -> None:
        self.collectives, self._numbers = [], []
        for step in self._forward() if self.phase is Phase.FORWARD else self.facts.regathered(self.function).steps:
            flat = self.facts.program.flats[step.gather[1]]
            calls = of_backward(flat, self.facts.state) if step.reduces else [of_gather(flat)]
            first = len(self.collectives)
            self.collectives += [TaskCollective(call, OfGather(*step.gather)) for call in calls]
            self._numbers.append((step, [*range(first, len(self.collectives))]))

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

    def events(self, work: Iterable[Work], times: Sequence[float]) -> Iterator[Event]:
        """Yields what the task does; `times` are the seconds of each collective, by which number it is known."""
        flats = self.facts.program.flats
        order = self.function.ahead.forward if self.phase is Phase.FORWARD else self.function.ahead.backward
        groups = [group for group, those in enumerate(order) for _ in those]
        gathers = [(step, number) for step, (number, *_) in self._numbers if not step.reduces]
        coming = [
            (group, number, flats[step.gather[1]].ahead) for group, (step, number) in zip(groups, gathers, strict=False)
        ]
        group_of = {number: group for group, number, _ in coming}
        begun, reducing = set[int](), list[int]()

        def begins(number: int) -> Event:
            begun.add(number)
            return Begins(number, self.collectives[number].call.axes, times[number])

        for item in self._in_order(work):
            if isinstance(item, float):
                yield Computes(item)
                continue
            step, numbers = item
            if step.reduces:
                yield from map(Awaits, reducing)
                yield from map(begins, numbers)
                reducing = numbers
                continue
            if numbers[0] not in begun:
                yield begins(numbers[0])
            yield Awaits(numbers[0])
            reached = group_of.get(numbers[0], 0)
            for group, later, ahead in coming:
                if later not in begun and group - ahead <= reached:
                    yield begins(later)

    def _in_order(self, work: Iterable[Work]) -> list[tuple[GatherStep, list[int]] | float]:
        """Steps and seconds of work in the order of the task. At one instruction gathers come first, and reductions
        last."""
        way = 1 if self.phase is Phase.FORWARD else -1
        steps = [((way * s.at.section, way * s.at.instr, 2 * s.reduces), n) for n, (s, _) in enumerate(self._numbers)]
        works = [((way * at.section, way * at.instr, 1), time_s) for at, time_s in work]
        keyed: list[tuple[tuple[int, int, int], int, tuple[GatherStep, list[int]] | float]] = [
            *((key, n, self._numbers[n]) for key, n in steps),
            *((key, 0, float(time_s)) for key, time_s in works),
        ]
        return [item for _, _, item in sorted(keyed, key=lambda k: k[:2])]
