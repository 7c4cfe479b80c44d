"""Prologues: inputs, constants and what follows from inputs only, once per step on each submesh."""

from functools import partial

from ssdsl.ir.function import Prologue
from ssdsl.ir.value import Name
from ssdsl.model.graph import Origin, Ref, Stage
from ssdsl.prove.facts import Facts
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.forward import Walk
from ssdsl.prove.local import Local


def prologue_types(facts: Facts, prologue: Prologue) -> dict[Name, Local]:
    """The types of what a prologue makes, by its names."""
    where = f"the prologue of {prologue.submesh}"
    constants = _constants(facts, prologue, where)
    walk = Walk(facts, prologue.submesh, (), None, where)

    def given(value: str) -> Local:
        origin = facts.graph.values[value].origin if value in facts.graph.values else None
        if origin not in (Origin.INPUT, Origin.SEED, Origin.CONSTANT) and value not in constants:
            raise Wrong(Rule.PREPARED, "an input or a constant", value)
        return Local()

    for var in prologue.given:
        walk.enters(var, partial(given, var.name.value))
    for instr in prologue.body:
        walk.instruction(instr)
    return {name: walk.types[name] for name in prologue.results if name in walk.types}


def _constants(facts: Facts, prologue: Prologue, where: str) -> set[str]:
    """The values of the constants, each of which follows from those before it."""
    made: set[str] = set()
    for name in prologue.constants:
        operator = facts.operators.get(name)
        if operator is None or operator.stage is not Stage.CONSTANT:
            facts.failures.add(Rule.PREPARED, where, name, "an operator on constants only", name)
            continue
        for value in _refs((operator.args, operator.kwargs)):
            if value not in made and facts.graph.values[value].origin is not Origin.CONSTANT:
                facts.failures.add(Rule.UNREADY, where, value, "a constant made before", name)
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
