"""Checks memory: a step works in place only on tensors that nothing reads later, autograd and recomputation included;
an operator that depends on its operands' strides gets those of one device; and nothing is computed or kept without a
reader."""

from collections.abc import Iterable

from ssdsl.ir.comm import Transfer
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, Write, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.model.memory.observed import OWN_CALL, overwritable
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule


def check_overwrites(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each step in place that may overwrite a tensor that is still read."""
    uses = function.uses

    def value_is_free(instr: Conversion, number: int) -> bool:
        """Whether nothing else reads the value, its producer does not keep it, no recomputed region begins with it, and
        none makes it again."""
        maker = uses.makers.get(instr.source)
        if maker is None or instr.source in uses.outputs or len(uses.readers[instr.source]) != 1:
            return False
        is_kept = function.sections[number].recompute and maker.section != number
        is_kept |= instr.source in function.sections[maker.section].again
        return not is_kept and instr.source.value in _overwritable(facts, function.at(maker))[0]

    def gradient_is_free(instr: Conversion, number: int) -> bool:
        """Whether the gradient is a tensor that the backward of an operator has just made, in the same region."""
        name = instr.result.name
        readers = uses.readers.get(name, ())
        is_inside = bool(readers) and name not in uses.outputs and all(p.section == number for p in readers)
        return is_inside and all(name.value in _overwritable(facts, function.at(p))[1] for p in readers)

    for number, section in enumerate(function.sections):
        for instr in section.body:
            if not isinstance(instr, Conversion):
                continue
            where = f"function `{function.name}`, reshard to {instr.result.name}"
            if instr.in_place[0] and not value_is_free(instr, number):
                facts.fail(
                    Rule.OVERWRITES, where, instr.source, "a copy", "forward in place", function.submesh.mesh.span
                )
            if instr.in_place[1] and not gradient_is_free(instr, number):
                facts.fail(
                    Rule.OVERWRITES,
                    where,
                    f"gradient of {instr.result.name}",
                    "a copy",
                    "backward in place",
                    function.submesh.mesh.span,
                )


def _overwritable(facts: ProofFacts, instr: Instr) -> tuple[frozenset[str], frozenset[str]]:
    """The results of an operator that are new tensors and that autograd does not keep, and the operands whose gradients
    are such tensors."""
    if not isinstance(instr, OpPart) or instr.kernel.function not in OWN_CALL:
        return frozenset(), frozenset()
    return overwritable(facts.operators[instr.operator])


# -- the order of axes in memory ---------------------------------------------------------------------------------------


def check_orders(facts: ProofFacts) -> None:
    """Adds a failure for each operator that depends on the order of its operands' axes in memory and does not lay them
    out as on one device: a tensor that was gathered, joined or sliced has another order."""
    for where, body in _bodies(facts):
        for op in (i for i in body if isinstance(i, OpPart)):
            operator = facts.operators[op.operator]
            wanted = operator.orders if operator.args[0].asks_for_order else ()
            if op.orders != wanted or len(wanted) not in (0, len(op.reads)):
                place = f"{where}, operator `{op.operator}`"
                facts.fail(Rule.ORDER, place, "", f"axes in the orders {wanted}", op.orders)


def _bodies(facts: ProofFacts) -> Iterable[tuple[str, tuple[Instr, ...]]]:
    for function in facts.program.functions:
        yield f"function `{function.name}`", tuple(function.body())
    for prologue in facts.program.prologues:
        yield f"the prologue on {prologue.submesh}", prologue.body


# -- values that nothing reads -----------------------------------------------------------------------------------------


def check_unread(facts: ProofFacts) -> None:
    """Adds a failure for each instruction and each output that nothing reads. Such an output would be kept to the end
    of the step, and backward would find no gradient for it."""
    program = facts.program
    kept = {(i.producer, i.slot) for f in program.functions for i in f.inputs}
    kept |= {(m.producer, m.source_slot) for m in program.messages if isinstance(m, Transfer)}
    kept |= {(r.function, r.slot) for r in program.results}
    for function in program.functions:
        where, span = f"function `{function.name}`", function.submesh.mesh.span
        for number, output in enumerate(function.outputs):
            if number != function.loss and (function.number, output.slot) not in kept:
                facts.fail(Rule.UNREAD, where, output.name, "a reader", output.slot, span)
        _check_read(facts, where, tuple(function.body()), (o.name for o in function.outputs))
    for prologue in program.prologues:
        _check_read(facts, f"the prologue on {prologue.submesh}", prologue.body, prologue.results)


def _check_read(facts: ProofFacts, where: str, body: tuple[Instr, ...], leaving: Iterable[Name]) -> None:
    read = {*leaving, *(name for instr in body for name in reads_of(instr))}
    for instr in body:
        changes = isinstance(instr, OpPart) and bool(facts.operators[instr.operator].statistics)
        has_effect = isinstance(instr, Write) or changes
        if not has_effect and read.isdisjoint(v.name for v in results_of(instr)):
            names = ", ".join(str(v.name) for v in results_of(instr))
            facts.fail(Rule.UNREAD, where, names, "a reader", "none")
