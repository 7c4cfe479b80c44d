"""A program that runs on the weights of another: on its parameters and flat parameters, as they lie there."""

from dataclasses import replace

from ssdsl.ir.function import Function
from ssdsl.ir.param import FlatParam, Zero
from ssdsl.ir.program import Program
from ssdsl.lower.functions.form_sections import section_gathers
from ssdsl.model.evaluation_errors import WeightElsewhere
from ssdsl.text.diagnostic import PlanError


def share_state(program: Program, owner: Program) -> Program:
    """A program that does not train, with the parameters of the one that does.

    Raises PlanError for a weight that it reads where `owner` has none.
    """
    homes = {(p.weight, p.submesh): p for p in owner.params}
    missing = dict.fromkeys((p.weight, p.submesh) for p in program.params if (p.weight, p.submesh) not in homes)
    if missing:
        known = {p.weight: p.submesh for p in reversed(owner.params)}
        raise PlanError(*(WeightElsewhere(None, w, str(s), str(known.get(w, "no device"))) for w, s in missing))
    functions = tuple(_gathering(f, owner.flats) for f in program.functions)
    return replace(program, functions=functions, params=owner.params, flats=owner.flats)


def _gathering(function: Function, flats: tuple[FlatParam, ...]) -> Function:
    """The function with the flat parameters that its sections gather (ZeRO-3)."""
    gathered = {
        w: f.number for f in flats if f.zero is Zero.WEIGHTS and f.submesh == function.submesh for w in f.weights
    }
    gathers = section_gathers(function, gathered)
    sections = tuple(replace(s, gathers=g) for s, g in zip(function.sections, gathers, strict=True))
    return replace(function, sections=sections)
