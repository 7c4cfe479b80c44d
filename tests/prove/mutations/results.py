"""What goes wrong in what is kept for the caller, and in whether a program trains."""

import itertools

from ssdsl.ir.function import results_of
from ssdsl.ir.program import Free, Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation, put, with_function


@mutation
def result_dropped(program: Program) -> Found:
    for k, result in enumerate(program.results):
        yield result.name, replace(program, results=put(program.results, k))


@mutation
def result_of_another_value(program: Program) -> Found:
    """Another version of the value, such as the addend before its sum, is left in the slot instead."""
    for k, result in enumerate(program.results):
        function = program.functions[result.function]
        others = {v.name for i in function.body() for v in results_of(i)} - {result.value}
        for other in sorted(others):
            outputs = tuple(replace(o, name=other) if o.slot == result.slot else o for o in function.outputs)
            changed = with_function(program, replace(function, outputs=outputs))
            yield (
                f"{result.name} {other}",
                replace(changed, results=put(program.results, k, replace(result, value=other))),
            )


@mutation
def result_not_kept(program: Program) -> Found:
    for result in program.results:
        function = program.functions[result.function]
        outputs = tuple(replace(o, read=False) if o.slot == result.slot else o for o in function.outputs)
        yield f"{result.name} read", with_function(program, replace(function, outputs=outputs))
        for k, role in enumerate(program.roles):
            if role.is_in(function.submesh):
                freed = Free(result.slot, (0,) * len(function.time))
                changed = replace(role, actions=(*role.actions, freed))
                yield f"{result.name} freed", replace(program, roles=put(program.roles, k, changed))


@mutation
def results_exchanged(program: Program) -> Found:
    for (j, a), (k, b) in itertools.combinations(enumerate(program.results), 2):
        changed = put(put(program.results, j, replace(a, name=b.name)), k, replace(b, name=a.name))
        yield f"{a.name} {b.name}", replace(program, results=changed)


@mutation
def training_said_otherwise(program: Program) -> Found:
    yield f"trains: {not program.trains}", replace(program, trains=not program.trains)
