"""What goes wrong with parts that are kept: of another value, of other parts, joined elsewhere, without gradient."""

from dataclasses import replace

from ssdsl.ir.function import Concat, Earlier, Extend
from ssdsl.ir.program import Program
from tests.prove.mutations.mutant import Found, instructions, mutation, put, with_function


@mutation
def extension_by_something_else(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Extend):
            yield f"{where} by itself", become(replace(instr, earlier=instr.source))
            yield f"{where} swapped", become(replace(instr, earlier=instr.source, source=instr.earlier))
            yield f"{where} elsewhere", become(replace(instr, cut=replace(instr.cut, dim=instr.cut.dim - 1)))
            yield f"{where} in blocks", become(replace(instr, cut=replace(instr.cut, outer=2 * instr.cut.outer)))


@mutation
def earlier_parts_of_another_value(program: Program) -> Found:
    """Of the values, instead of those of the keys, say."""
    for function in program.functions:
        kept = [k for k, i in enumerate(function.inputs) if any(isinstance(m, Earlier) for m in i.merges)]
        for at, other in zip(kept, [*kept[1:], *kept[:1]], strict=True):
            given = replace(function.inputs[at], slot=function.inputs[other].slot)
            if at != other:
                inputs = put(function.inputs, at, given)
                yield f"{function.name} input {at}", with_function(program, replace(function, inputs=inputs))


@mutation
def all_parts_for_the_earlier_ones(program: Program) -> Found:
    for function in program.functions:
        for at, given in enumerate(function.inputs):
            for k, merge in enumerate(given.merges):
                if isinstance(merge, Earlier):
                    joined = replace(given, merges=put(given.merges, k, Concat(merge.index, merge.cut)))
                    alone = replace(given, gradient=not given.gradient)
                    for word, one in (("all", joined), ("gradient", alone)):
                        changed = replace(function, inputs=put(function.inputs, at, one))
                        yield f"{function.name} input {at} {word}", with_function(program, changed)
