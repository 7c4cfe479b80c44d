"""What goes wrong in the types that a program writes down."""

from collections.abc import Iterator

from ssdsl.ir.function import (
    OpPart,
    results_of,
)
from ssdsl.ir.layout import PARTIAL, REPLICATE, Shard
from ssdsl.ir.program import Program
from ssdsl.ir.value import Var
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, instructions, mutation, put


@mutation
def annotation_changed(program: Program) -> Found:
    for where, instr, become in instructions(program):
        results = results_of(instr)
        for k, var in enumerate(results):
            for what, new in _other_types(var, program):
                changed = (
                    replace(instr, results=put(results, k, new))
                    if isinstance(instr, OpPart)
                    else replace(instr, result=new)
                )
                yield f"{where} {var.name} {what}", become(changed)


def _other_types(var: Var, program: Program) -> Iterator[tuple[str, Var]]:
    type_ = var.type
    for k, place in enumerate(type_.layout.places):
        for other in (REPLICATE, PARTIAL, Shard(0, Digit(2))):
            if place != other:
                yield "type", replace(var, type=replace(type_, layout=type_.layout.replacing(k, other)))
                break
    if type_.time:
        yield "time", replace(var, type=replace(type_, time=type_.time[1:]))
    if type_.owed:
        yield "sum", replace(var, type=replace(type_, owed=type_.owed[1:]))
    if var.gradient is not None:
        yield "no gradient", replace(var, gradient=None)
        for k, place in enumerate(var.gradient.layout.places):
            other = PARTIAL if place is not PARTIAL else REPLICATE
            yield (
                "gradient",
                replace(var, gradient=replace(var.gradient, layout=var.gradient.layout.replacing(k, other))),
            )
