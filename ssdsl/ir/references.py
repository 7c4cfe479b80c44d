"""Checks that a program refers only to things that exist: numbers are valid positions, names are names of the model's
values and operators, and a parameter has a placement for each axis of its submesh.

Every program is checked, proved or not. The proof (`ssdsl/prove`), which shows that a program computes what the model
computes, relies on this check.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from ssdsl.ir.comm import Transfer
from ssdsl.ir.function import Instr, OpPart, Write, reads_of, results_of
from ssdsl.ir.program import Program
from ssdsl.text.diagnostic import InternalError

MOST_SHOWN = 8


def check_references(program: Program) -> None:
    """Raises InternalError with the references to nothing, if there are any."""
    if found := [*dangling(program)]:
        more = [f"... {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
        raise InternalError("\n".join(["the compiler made a program that is not legal:", *found[:MOST_SHOWN], *more]))


def dangling(program: Program) -> Iterator[str]:
    """Yields a sentence for each reference to nothing: a number that is no position, or a name of nothing."""
    for what, numbers in (
        ("function", [f.number for f in program.functions]),
        ("message", [m.number for m in program.messages]),
        ("flat parameter", [f.number for f in program.flats]),
    ):
        if numbers != list(range(len(numbers))):
            yield f"the {what}s are numbered {numbers}"
    functions, flats = range(len(program.functions)), range(len(program.flats))
    used = [*(loss.function for loss in program.losses), *(r.function for r in program.results)]
    used += [n for m in program.messages for n in (m.producer, m.consumer)]
    used += [i.producer for f in program.functions for i in f.inputs]
    yield from (f"there is no function {n}" for n in used if n not in functions)
    of_sections = (n for f in program.functions for s in f.sections for n in (*s.gathers, *s.awaits))
    ahead = (n for f in program.functions for group in (*f.ahead.forward, *f.ahead.backward) for n in group)
    yield from (f"there is no flat parameter {n}" for n in chain(of_sections, ahead) if n not in flats)
    values = program.graph.values
    if not values.keys() >= {*(names := [*_values(program)])}:
        yield from (f"the model has no value `{v}`" for v in dict.fromkeys(names) if v not in values)
    for param in (p for p in program.params if len(p.layout.places) != len(p.submesh.axes)):
        yield f"`{param.weight}` has {len(param.layout.places)} places for {param.submesh}"
    bodies = [*((f.name, f.body()) for f in program.functions), *((str(p.submesh), p.body) for p in program.prologues)]
    for where, body in bodies:
        for op in (i for i in body if isinstance(i, OpPart)):
            operator = program.graph.by_name.get(op.operator)
            if operator is None:
                yield f"{where}: the model has no operator `{op.operator}`"
            elif (len(op.reads), len(op.results)) != (len(operator.inputs), len(operator.outputs)):
                yield f"{where}: `{op.operator}` reads {len(op.reads)} values and leaves {len(op.results)}"


def _values(program: Program) -> Iterator[str]:
    """All values of the model that a program names."""
    yield from (*(loss.name.value for loss in program.losses), *(r.value.value for r in program.results))
    if program.trains:  # an evaluation has the parameters of the training program, also those that it does not read
        yield from (p.weight for p in program.params if p.weight not in program.unreached)
        yield from (w for f in program.flats for w in f.weights if w not in program.unreached)
    yield from (m.value for m in program.messages if isinstance(m, Transfer))
    for function in program.functions:
        yield from (i.var.name.value for i in function.inputs)
        yield from (p.var.name.value for p in function.parameters)
        yield from (n.value for p in function.prepared for n in (p.var.name, p.source))
        yield from (o.name.value for o in function.outputs)
        yield from _named(function.body())
    for prologue in program.prologues:
        yield from (n.value for n in (*(v.name for v in prologue.given), *prologue.results))
        yield from _named(prologue.body)


def _named(body: Sequence[Instr]) -> list[str]:
    """The values of the model that instructions name."""
    read, made = [n.value for i in body for n in reads_of(i)], [v.name.value for i in body for v in results_of(i)]
    return [*read, *made, *(i.buffer for i in body if isinstance(i, Write))]
