"""What goes wrong with rows that travel to their experts."""

from ssdsl.ir.function import Conversion, OpPart
from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, instructions, mutation, put


@mutation
def expert_counts_swapped(program: Program) -> Found:
    """A device sends as many rows as it gets, or counts the rows of one end at both."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion) and len(instr.also) == 2:
            before, after = instr.also
            for rows in ((after, before), (before, before), (after, after)):
                yield f"{where} by {rows[0]}, {rows[1]}", become(replace(instr, also=rows))


@mutation
def rows_by_other_experts(program: Program) -> Found:
    """Rows go where another value's experts are; products read how many rows another router sends."""
    counts = {o.outputs[0].value for o in program.graph.operators if o.target == "ssdsl::count_rows"}
    names = [n for f in program.functions for n in f.variables() if n.value in counts]
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion) and len(instr.also) == 2:
            for other in (n for n in names if n.value != instr.also[0].value):
                yield f"{where} by {other}", become(replace(instr, also=(other, other)))
            yield f"{where} by nothing", become(replace(instr, also=()))
        if isinstance(instr, OpPart):
            for k, read in enumerate(instr.reads):
                if read.value in counts:
                    for other in (n for n in names if n != read):
                        yield f"{where} by {other}", become(replace(instr, reads=put(instr.reads, k, other)))
