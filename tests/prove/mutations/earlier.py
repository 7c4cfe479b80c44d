"""What goes wrong with parts that are kept: of another value, of other parts, joined elsewhere, without gradient."""

from ssdsl.ir.comm import AllGather, Exchange
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, instructions, mutation, put, with_function


@mutation
def extension_by_something_else(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if not isinstance(instr, Conversion):
            continue
        for step in (s for s in instr.forward if isinstance(s, Exchange) and s.in_time):
            yield f"{where} by itself", become(replace(instr, also=(instr.source,)))
            yield f"{where} by nothing", become(replace(instr, also=()))
            yield f"{where} swapped", become(replace(instr, also=(instr.source,), source=instr.also[0]))
            cut, at = step.source, step.target.at or ()
            elsewhere = replace(step, source=replace(cut, dim=cut.dim - 1))
            in_blocks = replace(step, source=replace(cut, outer=2 * cut.outer))
            alone = replace(step, target=replace(step.target, at=cut.at))
            fewer = replace(step, target=replace(step.target, at=put(at, len(at) - 1, ((1, at[-1][-1][1]),))))
            for word, other in (("elsewhere", elsewhere), ("in blocks", in_blocks), ("alone", alone), ("less", fewer)):
                yield f"{where} {word}", become(replace(instr, forward=(other,)))


@mutation
def earlier_parts_of_another_value(program: Program) -> Found:
    """Of the values, instead of those of the keys, say."""
    for function in program.functions:
        kept = [k for k, i in enumerate(function.inputs) if i.producer == function.number]
        for at, other in zip(kept, [*kept[1:], *kept[:1]], strict=True):
            given = replace(function.inputs[at], slot=function.inputs[other].slot)
            if at != other:
                inputs = put(function.inputs, at, given)
                yield f"{function.name} input {at}", with_function(program, replace(function, inputs=inputs))


@mutation
def all_parts_for_the_earlier_ones(program: Program) -> Found:
    """Or the last of them alone, in what is read and in what is made of it."""
    for function in program.functions:
        for at, given in enumerate(function.inputs):
            for k, merge in enumerate(given.merges if given.producer == function.number else ()):
                assert isinstance(merge, Exchange)
                cut = merge.source
                everything = AllGather(merge.axes, merge.elements, cut, in_time=True)
                last = replace(merge, target=replace(cut, at=(((0, 0),), *(cut.at or ())[:-1])))
                ways = [(word, put(given.merges, k, other)) for word, other in (("all", everything), ("last", last))]
                changed = [(word, replace(given, merges=merges)) for word, merges in ways]
                for word, one in (*changed, ("gradient", replace(given, gradient=not given.gradient))):
                    inputs = put(function.inputs, at, one)
                    where = f"{function.name} input {at} {word}"
                    yield where, with_function(program, replace(function, inputs=inputs))
