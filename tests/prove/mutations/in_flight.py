"""What goes wrong where conversions start before they are awaited."""

from collections.abc import Callable, Iterator

from ssdsl.ir.function import OpPart, Section, reads_of, results_of
from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation, put, with_function


def _pairs(program: Program) -> Iterator[tuple[str, Section, int, Callable[..., Program]]]:
    """Every pair of a start and a wait, by its number, and the program with another section."""
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for number, pair in enumerate(section.in_flight):

                def become(section: Section, f: int = function.number, s: int = s) -> Program:
                    there = program.functions[f]
                    return with_function(program, replace(there, sections=put(there.sections, s, section)))

                yield f"{function.name} {section.layer} {pair}", section, number, become


@mutation
def started_too_early(program: Program) -> Found:
    """The source is not there yet."""
    for where, section, number, become in _pairs(program):
        start, wait = section.in_flight[number]
        if start:
            yield where, become(replace(section, in_flight=put(section.in_flight, number, (start - 1, wait))))


@mutation
def awaited_too_late(program: Program) -> Found:
    """The result is read before."""
    for where, section, number, become in _pairs(program):
        start, wait = section.in_flight[number]
        conversion, *rest = section.body[wait:]
        names = {v.name for v in results_of(conversion)}
        if rest and not names.isdisjoint(reads_of(rest[0])):
            body = (*section.body[:wait], rest[0], conversion, *rest[1:])
            yield (
                where,
                become(replace(section, body=body, in_flight=put(section.in_flight, number, (start, wait + 1)))),
            )


@mutation
def started_twice(program: Program) -> Found:
    for where, section, number, become in _pairs(program):
        pair = section.in_flight[number]
        yield where, become(replace(section, in_flight=put(section.in_flight, number, pair, pair)))


@mutation
def started_for_nothing(program: Program) -> Found:
    """What would be awaited is no conversion."""
    for where, section, number, become in _pairs(program):
        start, _ = section.in_flight[number]
        other = next((k for k in range(start + 1, len(section.body)) if isinstance(section.body[k], OpPart)), None)
        if other is not None:
            yield where, become(replace(section, in_flight=put(section.in_flight, number, (start, other))))


@mutation
def awaited_before_it_starts(program: Program) -> Found:
    for where, section, number, become in _pairs(program):
        start, wait = section.in_flight[number]
        yield where, become(replace(section, in_flight=put(section.in_flight, number, (wait, start))))
