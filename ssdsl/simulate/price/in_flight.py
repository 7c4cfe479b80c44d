"""What a device does in one phase of a task, in order: kernels, and collectives from their starts to their waits.

The forward runs instructions in order, the backward in the opposite order: it starts a gradient's steps where the value
was awaited, and awaits them where the value started (`Section.in_flight`). A recomputed section runs forward first.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ssdsl.ir.function import Function, Section
from ssdsl.ir.uses import InstrPlace
from ssdsl.simulate.price.overlap import Awaits, Begins, Computes, Event
from ssdsl.simulate.price.travelling import Travelling

Queued = tuple[Hashable, float]  # the group of devices of a collective, and its seconds


class CallOf(NamedTuple):
    """A collective: the place of its instruction, the number of the pass, and that of the collective among those of the
    instruction."""

    at: InstrPlace
    number: int
    step: int


class Pass(NamedTuple):
    """A forward or a backward. By the number of an instruction: the seconds of the kernels that end there, and the
    collectives of the instruction in order."""

    computing: Mapping[int, float]
    collectives: Mapping[int, list[Queued]]
    is_backward: bool


def events(function: Function, passes: Sequence[Sequence[Pass]], weights: Travelling | None) -> Iterator[Event]:
    """Yields the events of a task, which runs these passes of each section; `weights` are those that travel meanwhile.
    The key of a collective of an instruction is a `CallOf`."""
    is_backward = any(each.is_backward for those in passes for each in those)
    for number in reversed(range(len(passes))) if is_backward else range(len(passes)):
        section = function.sections[number]
        if weights:
            yield from weights.before(InstrPlace(number, len(section.body)))  # a recomputed section gathers for itself
        for n, each in enumerate(passes[number]):
            travelling = weights if each.is_backward == is_backward else None
            for place in reversed(range(len(section.body))) if each.is_backward else range(len(section.body)):
                at = InstrPlace(number, place)
                if travelling:
                    yield from travelling.before(at)
                yield from _at(section, at, each, n)
                if travelling:
                    yield from travelling.behind(at)


def _at(section: Section, at: InstrPlace, each: Pass, number: int) -> Iterator[Event]:
    """Yields the events at an instruction: forward, starts stand in front of it, backward they are awaited behind."""
    starts = [at._replace(instr=wait) for start, wait in section.in_flight if start == at.instr]
    if not each.is_backward:
        for wait in starts:
            yield from _begins(each, wait, number)
    if at.instr not in section.awaited:
        yield from _begins(each, at, number)
        yield from _awaits(each, at, number)
    else:
        yield from _begins(each, at, number) if each.is_backward else _awaits(each, at, number)
    if at.instr in each.computing:
        yield Computes(each.computing[at.instr])
    if each.is_backward:
        for wait in reversed(starts):
            yield from _awaits(each, wait, number)


def _begins(each: Pass, at: InstrPlace, number: int) -> Iterator[Event]:
    """Yields the start of an instruction's collectives: each of them waits for the one before it."""
    for k, (queue, seconds) in enumerate(each.collectives.get(at.instr, ())):
        if k:
            yield Awaits(CallOf(at, number, k - 1))
        yield Begins(CallOf(at, number, k), queue, seconds)


def _awaits(each: Pass, at: InstrPlace, number: int) -> Iterator[Event]:
    """Yields the wait for the last collective of an instruction."""
    if met := each.collectives.get(at.instr):
        yield Awaits(CallOf(at, number, len(met) - 1))
