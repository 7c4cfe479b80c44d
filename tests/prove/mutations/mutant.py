"""A mutant: one changed program; the table of the kinds of change, and what replaces things deep inside."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ssdsl.ir.comm import Step
from ssdsl.ir.function import (
    Conversion,
    Function,
    Instr,
    OpPart,
    Write,
)
from ssdsl.ir.layout import Cut
from ssdsl.ir.program import Program
from ssdsl.record import replace


@dataclass(frozen=True)
class Mutant:
    """A changed program: the kind of change, and where."""

    kind: str
    where: str
    program: Program

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}"


Found = Iterator[tuple[str, Program]]
Mutation = Callable[[Program], Found]
MUTATIONS: dict[str, Mutation] = {}
OF_KINDS: set[str] = set()  # the mutations of what sections of one kind share


def mutation(make: Mutation) -> Mutation:
    MUTATIONS[make.__name__] = make
    return make


def mutation_of_kinds(make: Mutation) -> Mutation:
    OF_KINDS.add(make.__name__)
    return mutation(make)


def mutants(program: Program, kinds: tuple[str, ...] = (), most: int | None = None) -> Iterator[Mutant]:
    """All mutants of these kinds (all by default), or of each kind `most`, spread evenly."""
    for kind in kinds or MUTATIONS:
        found = MUTATIONS[kind](program)
        chosen = list(found) if most is not None else found
        if most is not None and isinstance(chosen, list) and len(chosen) > most:
            chosen = [chosen[k * len(chosen) // most] for k in range(most)]
        for where, mutant in chosen:
            yield Mutant(kind, where, mutant if kind in OF_KINDS else unshared(mutant))


def unshared(program: Program) -> Program:
    """A program whose sections are each of a kind of its own, so that a change is not refuted by what is like it."""
    functions = (
        replace(f, kind=None, sections=tuple(replace(s, kind=None) for s in f.sections)) for f in program.functions
    )
    return replace(program, functions=tuple(functions))


def put(items: tuple[Any, ...], k: int, *new: Any) -> tuple[Any, ...]:
    """Some items in the place of one."""
    return (*items[:k], *new, *items[k + 1 :])


def with_function(program: Program, function: Function) -> Program:
    return replace(program, functions=put(program.functions, function.number, function))


def instructions(program: Program) -> Iterator[tuple[str, Instr, Callable[..., Program]]]:
    """Every instruction, and the program with others in its place."""
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for k, instr in enumerate(section.body):

                def become(*new: Instr, f: Function = function, s: int = s, k: int = k) -> Program:
                    section, body = f.sections[s], put(f.sections[s].body, k, *new)
                    in_flight = section.in_flight if len(new) == 1 else ()  # others have other numbers then
                    changed = replace(section, body=body, in_flight=in_flight)
                    return with_function(program, replace(f, sections=put(f.sections, s, changed)))

                yield f"{function.name} {title(instr)}", instr, become
    for p, prologue in enumerate(program.prologues):
        for k, instr in enumerate(prologue.body):

            def become_there(*new: Instr, p: int = p, k: int = k) -> Program:
                changed = replace(program.prologues[p], body=put(program.prologues[p].body, k, *new))
                return replace(program, prologues=put(program.prologues, p, changed))

            yield f"prologue {p} {title(instr)}", instr, become_there


def directions(program: Program) -> Iterator[tuple[str, Conversion, str, Callable[[tuple[Step, ...]], Program]]]:
    """Every conversion with the name of its steps in one direction, and the program with others in their place."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion):
            for direction in ("forward", "backward"):
                if direction == "backward" and instr.result.gradient is None:
                    continue

                def changed(
                    steps: tuple[Step, ...], instr: Conversion = instr, d: str = direction, become: Any = become
                ) -> Program:
                    return become(replace(instr, **{d: steps}))

                yield f"{where} {direction}", instr, direction, changed


def title(instr: Instr) -> str:
    match instr:
        case OpPart():
            return instr.operator
        case Write():
            return f"Write {instr.buffer}"
        case _:
            return f"{type(instr).__name__} {instr.result.name}"


def axes_of(program: Program) -> dict[str, int]:
    return {a: n for mesh in program.plan.meshes for a, n in mesh.axes if n > 1}


def parts_in(program: Program) -> Iterator[tuple[str, Function, Callable[[Function], Program]]]:
    for function in program.functions:
        yield function.name, function, lambda new: with_function(program, new)


def cuts(cut: Cut) -> list[Cut]:
    """Other digits of the same tensor, or of none."""
    changed = [replace(cut, dim=cut.dim + 1), replace(cut, outer=cut.outer * 2), replace(cut, count=cut.count * 2)]
    changed += [replace(cut, dim=cut.dim - 1)] if cut.dim else []
    changed += [replace(cut, outer=cut.outer // 2)] if cut.outer % 2 == 0 else []
    changed += [replace(cut, outer=1)] if cut.outer > 2 else []
    return changed
