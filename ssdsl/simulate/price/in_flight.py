"""What a device does in one phase of a section, in order: kernels, and collectives from their starts to their waits.

The forward runs instructions in order, the backward in the opposite order: it starts a gradient's steps where the value
was awaited, and awaits them where the value started (`Section.in_flight`). A recomputed section runs forward first.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ssdsl.ir.function import Section
from ssdsl.simulate.price.overlap import Awaits, Begins, Computes, Event

Queued = tuple[Hashable, float]  # the group of devices of a collective, and its seconds


class CallOf(NamedTuple):
    """A collective: the number of its instruction, of the pass, and of the collective among those of the
    instruction."""

    place: int
    number: int
    step: int


class Pass(NamedTuple):
    """A forward or a backward. By the number of an instruction: the seconds of the kernels that end there, and the
    collectives of the instruction in order."""

    computing: Mapping[int, float]
    collectives: Mapping[int, list[Queued]]
    is_backward: bool


def events(section: Section, passes: Iterable[Pass]) -> Iterator[Event]:
    """Yields the events of a section in some passes; the key of a collective is a `CallOf`."""
    for number, each in enumerate(passes):
        for place in reversed(range(len(section.body))) if each.is_backward else range(len(section.body)):
            yield from _at(section, place, each, number)


def _at(section: Section, place: int, each: Pass, number: int) -> Iterator[Event]:
    """Yields the events at an instruction: forward, starts stand in front of it, backward they are awaited behind."""
    starts = [wait for start, wait in section.in_flight if start == place]
    if not each.is_backward:
        for wait in starts:
            yield from _begins(each, wait, number)
    if place not in section.awaited:
        yield from _begins(each, place, number)
        yield from _awaits(each, place, number)
    else:
        yield from _begins(each, place, number) if each.is_backward else _awaits(each, place, number)
    if place in each.computing:
        yield Computes(each.computing[place])
    if each.is_backward:
        for wait in reversed(starts):
            yield from _awaits(each, wait, number)


def _begins(each: Pass, place: int, number: int) -> Iterator[Event]:
    """Yields the start of an instruction's collectives: each of them waits for the one before it."""
    for k, (queue, seconds) in enumerate(each.collectives.get(place, ())):
        if k:
            yield Awaits(CallOf(place, number, k - 1))
        yield Begins(CallOf(place, number, k), queue, seconds)


def _awaits(each: Pass, place: int, number: int) -> Iterator[Event]:
    """Yields the wait for the last collective of an instruction."""
    if met := each.collectives.get(place):
        yield Awaits(CallOf(place, number, len(met) - 1))
