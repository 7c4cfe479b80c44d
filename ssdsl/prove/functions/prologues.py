"""Checks prologues: inputs, constants and values that follow from inputs only, once per step on each submesh."""

from functools import partial
from math import prod

from ssdsl.ir.function import Prologue
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Name, Var
from ssdsl.model.graph import Origin, Ref, Stage
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.forward import Walk
from ssdsl.prove.roles.devices import Share, share
from ssdsl.prove.types.local import Local, elements, fixed_by, of_type


def prologues(facts: ProofFacts) -> dict[Submesh, dict[Name, Local]]:
    """By submesh, the types of the values that its prologue computes, by name."""
    found: dict[Submesh, dict[Name, Local]] = {}
    for prologue in facts.program.prologues:
        if prologue.submesh in found:
            facts.fail(Rule.TWICE, "the prologues", "", "one for each submesh", prologue.submesh)
        types = _types(facts, prologue)
        for submesh, others in found.items():
            if share(submesh, prologue.submesh) is not Share.NONE or share(prologue.submesh, submesh) is not Share.NONE:
                _check_alike(facts, prologue, types, others)
        found[prologue.submesh] = types
    results = {p.submesh: p.results for p in facts.program.prologues}
    return {s: {n: types[n] for n in results[s] if n in types} for s, types in found.items()}


def _types(facts: ProofFacts, prologue: Prologue) -> dict[Name, Local]:
    """The types of all values that a prologue is given or makes."""
    where = f"the prologue of {prologue.submesh}"
    constants = _constants(facts, prologue, where)
    walk = Walk(facts, prologue.submesh, (), None, where)

    def given(var: Var) -> Local:
        value = var.name.value
        origin = facts.graph.values[value].origin
        if origin is Origin.INPUT or value in constants:
            return _part(facts, prologue.submesh, var)
        if origin not in (Origin.SEED, Origin.CONSTANT):
            raise Wrong(Rule.PREPARED, "an input or a constant", value)
        return Local()

    for var in prologue.given:
        if var.name != Name(var.name.value):
            facts.fail(Rule.PREPARED, where, var.name, Name(var.name.value), var.name)
        walk.enters(var, partial(given, var))
    for instr in prologue.body:
        walk.instruction(instr)
    return walk.types


def _part(facts: ProofFacts, submesh: Submesh, var: Var) -> Local:
    """The type of an input or a constant as devices are given it: digits along axes. Raises Wrong if it is no part for
    each device."""
    local = of_type(var.type, submesh.axes)
    sizes = dict(submesh.axes)
    digits = fixed_by(local, submesh.axes)
    if local.partial or any(
        not isinstance(c, Axis) or d.parts != prod(sizes[name] for name in c.names) for c, d in digits
    ):
        raise Wrong(Rule.PART, "one part for each device", local)
    elements(facts.shape(var.name.value), local)
    return local


def _check_alike(facts: ProofFacts, prologue: Prologue, types: dict[Name, Local], others: dict[Name, Local]) -> None:
    """Adds a failure for each name that has another type in another prologue of the same devices: they keep values by
    name."""
    where = f"the prologue of {prologue.submesh}"
    for name in types.keys() & others.keys():
        if types[name] != others[name]:
            facts.fail(Rule.PART, where, name, others[name], types[name], prologue.submesh.mesh.span)


def _constants(facts: ProofFacts, prologue: Prologue, where: str) -> set[str]:
    """The constants' values. Adds a failure for an operator that reads a value before it is made."""
    made: set[str] = set()
    for name in prologue.constants:
        operator = facts.operators.get(name)
        if operator is None or operator.stage is not Stage.CONSTANT:
            facts.fail(Rule.PREPARED, where, name, "an operator on constants only", name)
            continue
        for value in _refs((operator.args, operator.kwargs)):
            if value not in made and facts.graph.values[value].origin is not Origin.CONSTANT:
                facts.fail(Rule.UNREADY, where, value, "a constant made before", name)
        made.update(o.value for o in operator.outputs)
    return made


def _refs(item: object) -> list[str]:
    match item:
        case Ref(value):
            return [value]
        case tuple() | list():
            return [v for part in item for v in _refs(part)]
        case _:
            return []
