"""What goes wrong in memory: how operands lie, and what nothing reads. `communication` has the steps in place."""

from ssdsl.ir.function import Conversion, FunctionOutput, OpPart, results_of
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, instructions, mutation, with_function


@mutation
def order_forgotten(program: Program) -> Found:
    """An operator reads what was gathered as it lies."""
    for where, instr, become in instructions(program):
        if isinstance(instr, OpPart) and instr.orders:
            yield where, become(replace(instr, orders=()))


@mutation
def another_order(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, OpPart) and any(len(order) > 1 for order in instr.orders):
            yield where, become(replace(instr, orders=tuple(order[::-1] for order in instr.orders)))


@mutation
def left_for_nobody(program: Program) -> Found:
    """A function leaves a value that nothing reads, as dead code does."""
    for function in program.functions:
        left = {o.name for o in function.outputs}
        for var in (v for instr in function.body() for v in results_of(instr) if v.name not in left):
            output = FunctionOutput(var.name, f"{var.name} for nobody", var.gradient is not None)
            changed = replace(function, outputs=(*function.outputs, output))
            yield f"{function.name} {var.name}", with_function(program, changed)


@mutation
def made_for_nobody(program: Program) -> Found:
    for where, instr, become in instructions(program):
        for var in results_of(instr):
            copy = replace(var, name=Name(var.name.value, 99), gradient=None)
            yield f"{where} {var.name}", become(instr, Conversion(var.name, copy, (), ()))
