"""What goes wrong where conversions start before they are awaited."""

from collections.abc import Callable, Iterator

from ssdsl.ir.function import Function, OpPart, Section, reads_of, results_of
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
        _, wait = section.in_flight[number]
        source = next(iter(reads_of(section.body[wait])))
        makers = (n for n, instr in enumerate(section.body) if source in {v.name for v in results_of(instr)})
        if (maker := next(makers, None)) is not None:
            yield where, become(replace(section, in_flight=put(section.in_flight, number, (maker, wait))))


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


# -- between tasks -----------------------------------------------------------------------------------------------------


def _departures(program: Program) -> Iterator[tuple[str, Function, int]]:
    """Every function with an output in flight, by its number."""
    for function in program.functions:
        for number, output in enumerate(function.outputs):
            if output.in_flight:
                yield f"{function.name} {output.slot}", function, number


def _reader(program: Program, function: Function, number: int) -> tuple[Function, int]:
    """The function that awaits an output, and the number of its input."""
    slot = function.number, function.outputs[number].slot
    return next((f, k) for f in program.functions for k, i in enumerate(f.inputs) if (i.producer, i.slot) == slot)


@mutation
def never_awaited(program: Program) -> Found:
    """The task that reads it takes what is in flight for what has arrived."""
    for where, function, number in _departures(program):
        reader, k = _reader(program, function, number)
        inputs = put(reader.inputs, k, replace(reader.inputs[k], in_flight=False))
        yield where, with_function(program, replace(reader, inputs=inputs))


@mutation
def never_started(program: Program) -> Found:
    """A task awaits what does not travel."""
    for where, function, number in _departures(program):
        outputs = put(function.outputs, number, replace(function.outputs[number], in_flight=False))
        yield where, with_function(program, replace(function, outputs=outputs))


@mutation
def awaited_without_communication(program: Program) -> Found:
    """What an operator computes is in flight."""
    for function in program.functions:
        for number, output in enumerate(function.outputs):
            maker, slot = function.uses.makers.get(output.name), (function.number, output.slot)
            if output.in_flight or maker is None or not isinstance(function.at(maker), OpPart):
                continue
            found = ((f, k) for f in program.functions for k, i in enumerate(f.inputs) if (i.producer, i.slot) == slot)
            for reader, k in found:
                outputs = put(function.outputs, number, replace(output, in_flight=True))
                changed = with_function(program, replace(function, outputs=outputs))
                inputs = put(reader.inputs, k, replace(reader.inputs[k], in_flight=True))
                yield f"{function.name} {output.slot}", with_function(changed, replace(reader, inputs=inputs))


@mutation
def started_in_a_recomputed_section(program: Program) -> Found:
    """Backward would start it again, and nobody awaits that."""
    for where, function, number in _departures(program):
        at = function.uses.makers[function.outputs[number].name].section
        sections = put(function.sections, at, replace(function.sections[at], recompute=True))
        yield where, with_function(program, replace(function, sections=sections))


@mutation
def left_twice(program: Program) -> Found:
    """Another slot has it, too, and nobody awaits it there."""
    for where, function, number in _departures(program):
        output = function.outputs[number]
        reader, k = _reader(program, function, number)
        again = replace(output, slot=f"{output.slot} again", in_flight=False)
        given = replace(reader.inputs[k], slot=again.slot, in_flight=False)
        changed = with_function(program, replace(function, outputs=(*function.outputs, again)))
        var = replace(given.var, name=given.var.name._replace(version=99))
        inputs = (*reader.inputs, replace(given, var=var, gradient=False))
        yield where, with_function(changed, replace(reader, inputs=inputs))
