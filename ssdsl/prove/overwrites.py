"""Steps that work in place: only on tensors that nobody needs any more, autograd and recomputation included."""

from ssdsl.ir.function import Function, Instr, Op, Reshard, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.model.ops.overwritable import overwritable
from ssdsl.prove.facts import Facts
from ssdsl.prove.failures import Rule

OWN_CALL = ("", "conv_part", "conv_transpose_part")  # a plain call, or one of what its windows read


def check_overwrites(facts: Facts, function: Function) -> None:
    """Adds a failure for each step in place that may destroy what is still read."""
    made: dict[Name, tuple[int, Instr]] = {}
    readers: dict[Name, list[tuple[int, Instr]]] = {}
    for number, section in enumerate(function.sections):
        for instr in section.body:
            made.update((v.name, (number, instr)) for v in results_of(instr))
            for read in dict.fromkeys(reads_of(instr)):
                readers.setdefault(read, []).append((number, instr))
    leaving = {o.name for o in function.outputs}

    def value_is_free(instr: Reshard, number: int) -> bool:
        """Nobody else reads it, its producer does not keep it, and no recomputed region begins with it."""
        producer = made.get(instr.source)
        if producer is None or instr.source in leaving or len(readers[instr.source]) != 1:
            return False
        is_kept = function.sections[number].recompute and producer[0] != number
        return not is_kept and instr.source.value in _overwritable(facts, producer[1])[0]

    def gradient_is_free(instr: Reshard, number: int) -> bool:
        """It is a tensor that the backward of an operator has just made, in the same region."""
        name = instr.result.name
        users = readers.get(name, [])
        return (
            bool(users)
            and name not in leaving
            and all(n == number and name.value in _overwritable(facts, i)[1] for n, i in users)
        )

    for number, section in enumerate(function.sections):
        for instr in section.body:
            if not isinstance(instr, Reshard):
                continue
            where = f"function `{function.name}`, reshard to {instr.result.name}"
            if instr.in_place[0] and not value_is_free(instr, number):
                facts.failures.add(
                    Rule.OVERWRITES, where, instr.source, "a copy", "forward in place", function.submesh.mesh.span
                )
            if instr.in_place[1] and not gradient_is_free(instr, number):
                facts.failures.add(
                    Rule.OVERWRITES,
                    where,
                    f"gradient of {instr.result.name}",
                    "a copy",
                    "backward in place",
                    function.submesh.mesh.span,
                )


def _overwritable(facts: Facts, instr: Instr) -> tuple[frozenset[str], frozenset[str]]:
    """Of an operator the results that are new tensors which nothing keeps, and the operands whose gradients are."""
    if not isinstance(instr, Op) or instr.operator not in facts.operators or instr.kernel.function not in OWN_CALL:
        return frozenset(), frozenset()
    return overwritable(facts.operators[instr.operator], facts.graph)
