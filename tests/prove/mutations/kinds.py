"""What goes wrong with the kinds of sections: one that is unlike gets the number, and so the code, of another."""

from collections.abc import Iterator

from ssdsl.ir.function import Function, OpPart, Section
from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation_of_kinds, put, with_function


def _sections(program: Program) -> Iterator[tuple[Function, int, Section]]:
    for function in program.functions:
        yield from ((function, n, section) for n, section in enumerate(function.sections))


def _with(program: Program, function: Function, number: int, section: Section) -> Program:
    return with_function(program, replace(function, sections=put(function.sections, number, section)))


@mutation_of_kinds
def section_of_another_kind(program: Program) -> Found:
    kinds = {section.kind for _, _, section in _sections(program)}
    for function, number, section in _sections(program):
        for kind in kinds - {section.kind}:
            yield (
                f"{function.name} {section.layer} {kind}",
                _with(program, function, number, replace(section, kind=kind)),
            )


@mutation_of_kinds
def changed_in_its_kind(program: Program) -> Found:
    """An operator of a section that is not the first of its kind reads its operands in another order."""
    seen = set[int | None]()
    for function, number, section in _sections(program):
        if section.kind in seen:
            for k, instr in enumerate(section.body):
                if isinstance(instr, OpPart) and len(set(instr.reads)) > 1:
                    body = put(section.body, k, replace(instr, reads=instr.reads[::-1]))
                    where = f"{function.name} {section.layer} {instr.operator}"
                    yield where, _with(program, function, number, replace(section, body=body))
        seen.add(section.kind)
