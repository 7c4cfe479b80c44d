"""The memory of weights in parts (ZeRO-3) while a task runs: those that a section reads, those that are gathered ahead,
and in backward the gradients that are being reduced.

What goes in backward is a gradient of the same size from then on, until the next one is reduced.
"""

from collections.abc import Iterable, Iterator, Sequence

from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.analyse.tape import Touch, TouchKind, peak_bytes
from ssdsl.ir.function import Function, starts_of_gathers
from ssdsl.ir.param import FlatParam
from ssdsl.ir.uses import InstrPlace
from ssdsl.lower.params.regathered import GatherStep

REDUCED = "gradients that are being reduced"


def forward_bytes(facts: ProgramIndex, function: Function) -> int:
    """The most bytes of gathered weights at a time while forward runs."""
    return peak_bytes(_touches(facts, _forward(function), function.ahead.forward, is_forward=True), {})


def backward_touches(facts: ProgramIndex, function: Function) -> list[Touch]:
    """The touches of gathered weights in a whole backward, in order."""
    return [*_touches(facts, _backward(facts, function), function.ahead.backward, is_forward=False)]


def _forward(function: Function) -> Iterator[GatherStep | Touch]:
    """Yields the gathers of sections, and what they free. Sections without a layer share theirs until the function
    ends."""
    for number, section in enumerate(function.sections):
        at = InstrPlace(number, 0)
        yield from (GatherStep(at, (number, flat)) for flat in section.gathers)
        if section.is_apart:
            yield from (Touch(at, _weights(flat), TouchKind.DROP) for flat in section.gathers)


def _backward(facts: ProgramIndex, function: Function) -> Iterator[GatherStep | Touch]:
    for step in facts.regathered(function).steps:
        flat = facts.program.flats[step.gather[1]]
        if not step.reduces:
            yield step
        elif not flat.stays_whole:
            yield from (Touch(step.at, storage, TouchKind.DROP) for storage in (_weights(flat.number), REDUCED))
            yield Touch(step.at, REDUCED, TouchKind.MAKE, flat_bytes(flat) + _padded_bytes(flat))


def _touches(
    facts: ProgramIndex, steps: Iterable[GatherStep | Touch], groups: Sequence[Sequence[int]], *, is_forward: bool
) -> Iterator[Touch]:
    """Yields touches, with each gather where it starts; `groups` are the gathers of each section, if some start ahead
    of their reader. Weights that stay whole are not the task's own."""
    flats, steps = facts.program.flats, [*steps]
    gathers = [step.gather[1] for step in steps if isinstance(step, GatherStep)]
    starts = iter(starts_of_gathers(len(gathers), groups, lambda flat: flats[flat].ahead))
    for step in steps:
        if isinstance(step, Touch):
            yield step
        else:
            own = [flats[gathers[n]] for n in next(starts) if not _stays(flats[gathers[n]], is_forward=is_forward)]
            yield from (Touch(step.at, _weights(flat.number), TouchKind.GATHER, flat_bytes(flat)) for flat in own)
            for flat in (flat for flat in own if flat.sharded.portions):  # until they arrive
                yield Touch(step.at, _padded(flat.number), TouchKind.MAKE, _padded_bytes(flat))
            yield Touch(step.at, _padded(step.gather[1]), TouchKind.DROP)


def _stays(flat: FlatParam, *, is_forward: bool) -> bool:
    """Whether the weights stay whole in tasks of this direction."""
    return flat.stays_whole and not (is_forward and flat.kept is not None and flat.kept.in_backward)


def _padded(flat: int) -> str:
    return f"parts of flat{flat}"


def _padded_bytes(flat: FlatParam) -> int:
    """The buffer of a collective whose parts are unequal, each padded to the largest."""
    return flat_bytes(flat) * flat.gathered_over(flat.sharded.weights) // flat.elements if flat.sharded.portions else 0


def _weights(flat: int) -> str:
    return f"weights of flat{flat}"
