"""Checks a backward in halves: the first half returns gradients of activations, the second leaves those of weights.

The gradient of a value that follows from weights alone belongs to the second half, also where an operator reads it
together with a value that follows from data.
"""

from ssdsl.ir.function import Backward, OpPart, Side, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.prove.facts import ProofFacts, TypedFunction
from ssdsl.prove.failures import Rule


def check_halves(facts: ProofFacts, typed: TypedFunction) -> None:
    """Adds a failure where the sides of operands, or the outputs left for the second half, are wrong."""
    function = typed.function
    in_halves = function.backward in (Backward.HALVES, Backward.DGRAD)
    weights: set[Name] = {p.var.name for p in function.parameters}
    weights |= {p.var.name for p in function.prepared if p.var.name.value in facts.alone}
    where, span = f"function `{function.name}`", function.submesh.mesh.span
    for section in function.sections:
        for instr in section.body:
            follows = weights.issuperset(reads_of(instr))
            if follows:
                weights.update(v.name for v in results_of(instr))
            if not isinstance(instr, OpPart):
                continue
            sides = tuple(_side(typed, r, weights) for r in instr.reads)
            mixes = in_halves and not follows and Side.WEIGHT in sides
            if instr.sides != (sides if mixes else None):
                place = f"{where}, operator `{instr.operator}`"
                facts.failures.add(
                    Rule.SIDES,
                    place,
                    "",
                    _words(sides) if mixes else "none",
                    _words(instr.sides or ()),
                    facts.span_of(instr, function.submesh),
                )
            learns = any(facts.learns(v.name) for v in instr.results)
            if in_halves and follows and learns and section.recompute:
                # the recomputation would read copies of the weights, whose gradients are lost
                facts.failures.add(
                    Rule.SIDES, where, "", "outside recomputed sections", f"operator `{instr.operator}`", span
                )
    for output in function.outputs:
        wanted = in_halves and output.name in weights and output.name in typed.graded
        if output.wgrad_only != wanted:
            facts.failures.add(
                Rule.SIDES, where, output.name, f"left for the second half: {wanted}", output.wgrad_only, span
            )


def _side(typed: TypedFunction, name: Name, weights: set[Name]) -> Side:
    if name not in typed.graded:
        return Side.FIXED
    return Side.WEIGHT if name in weights else Side.ACTIVATION


def _words(sides: tuple[Side, ...]) -> str:
    return ", ".join(s.value for s in sides) or "none"
