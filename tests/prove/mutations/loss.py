"""What goes wrong with the loss, and with functions and roles as a whole."""

from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation, parts_in, put, with_function


@mutation
def loss_changed(program: Program) -> Found:
    (loss,) = program.losses
    function = program.functions[loss.function]
    for axis, _ in function.submesh.axes:
        axes = tuple(a for a in loss.axes if a != axis) if axis in loss.axes else (*loss.axes, axis)
        yield f"over {axes}", replace(program, losses=(replace(loss, axes=axes),))
    yield "no function's output", with_function(program, replace(function, loss=None))
    for output in function.outputs:
        if output.name != loss.name:
            yield f"{output.name}", replace(program, losses=(replace(loss, name=output.name),))
            break


@mutation
def constant_dropped(program: Program) -> Found:
    for p, prologue in enumerate(program.prologues):
        for k, name in enumerate(prologue.constants):
            changed = replace(prologue, constants=put(prologue.constants, k))
            yield f"prologue {p} {name}", replace(program, prologues=put(program.prologues, p, changed))


@mutation
def function_dropped(program: Program) -> Found:
    """Its operators run nowhere, though its tasks still do."""
    for name, function, become in parts_in(program):
        yield name, become(replace(function, sections=()))


@mutation
def role_dropped(program: Program) -> Found:
    for k, role in enumerate(program.roles):
        if role.actions:
            yield role.name, replace(program, roles=put(program.roles, k))


@mutation
def role_without_actions(program: Program) -> Found:
    for k, role in enumerate(program.roles):
        if role.actions:
            yield role.name, replace(program, roles=put(program.roles, k, replace(role, actions=())))
