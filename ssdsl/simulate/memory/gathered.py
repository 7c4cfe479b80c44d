"""The memory of weights in parts (ZeRO-3) while a task runs: those that a section reads, those that are gathered ahead,
and in backward the gradients that are being reduced."""

from collections.abc import Iterable, Iterator, Sequence

from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.ir.function import Function


def gathered_bytes(facts: ProgramIndex, function: Function) -> int:
    """The most bytes at a time, forward or backward."""
    ahead = function.ahead
    back = ((step.gather[1], step.reduces) for step in facts.regathered(function).steps)
    forward = _most(facts, _forward(function), ahead.forward, reduces=False)
    return max(forward, _most(facts, back, ahead.backward, reduces=True))


def _forward(function: Function) -> Iterator[tuple[int, bool]]:
    """Yields the flat parameters that sections gather and, then True, those that they free. Sections without a layer
    share theirs until the function ends."""
    for section in function.sections:
        yield from ((flat, False) for flat in section.gathers)
        if section.layer or section.recompute:
            yield from ((flat, True) for flat in section.gathers)


def _most(
    facts: ProgramIndex, steps: Iterable[tuple[int, bool]], order: Sequence[Sequence[int]], *, reduces: bool
) -> int:
    """The most bytes of what is gathered; `order` has the gathers of each section, if some start ahead. If backward
    `reduces` the gradients of what goes, these are as large, and stay until the next ones are reduced."""
    flats = facts.program.flats
    coming = [(section, flat) for section, those in enumerate(order) for flat in those]
    live, most, begun, reduced = 0, 0, 0, 0
    for awaited, (flat, goes) in _numbered(steps):
        if goes:
            size = flat_bytes(flats[flat])
            live -= reduced if reduces else size
            reduced = size
        elif not coming:
            live += flat_bytes(flats[flat])
        else:
            reached, _ = coming[awaited]
            while begun < len(coming) and coming[begun][0] - flats[coming[begun][1]].ahead <= reached:
                live += flat_bytes(flats[coming[begun][1]])
                begun += 1
        most = max(most, live)
    return most


def _numbered(steps: Iterable[tuple[int, bool]]) -> Iterator[tuple[int, tuple[int, bool]]]:
    """Yields steps, each with the number of gathers before it."""
    gathers = 0
    for flat, goes in steps:
        yield gathers, (flat, goes)
        gathers += not goes
