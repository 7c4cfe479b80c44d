"""What holds behind a stage: each check raises InternalError for a stage that says something else.

They look at the form of a stage, once for each kind of operator or section, and take a twentieth of the time of
lowering or less. That a program computes what the model computes is shown by its proof (`ssdsl/prove`).
"""

from collections.abc import Iterable, Iterator

from ssdsl.ir.function import Function, reads_of, results_of
from ssdsl.ir.layout import Shape
from ssdsl.ir.value import Name, Type
from ssdsl.lower.stages import Formed, TypedGraph, TypedOperand
from ssdsl.text.diagnostic import InternalError

Axes = tuple[tuple[str, int], ...]  # of a submesh, with their sizes


def check_typed(stage: TypedGraph) -> None:
    """Each operator runs on a submesh and has a type for each operand and result, with a placement for each axis of
    the submesh, digits of factors that the tensor has, and no coordinate twice."""
    _refuse("type_operators", _mistyped(stage))


def check_formed(stage: Formed) -> None:
    """In each function every value is there before it is read, and is made once; its inputs are outputs of their
    producers, or come by a message to it; prologues provide what it gets from them; the program has its parameters and
    the flat parameters that its sections gather."""
    _refuse("number_kinds", _malformed(stage))


def _refuse(name: str, problems: Iterator[str]) -> None:
    if (problem := next(problems, None)) is not None:
        raise InternalError(f"`{name}` left a stage that is not legal: {problem}")


# -- typed operators ---------------------------------------------------------------------------------------------------


def _mistyped(stage: TypedGraph) -> Iterator[str]:
    seen = set[tuple[int, Axes]]()
    for operator in stage.graph.computing:
        typed, submesh = stage.typed.get(operator.name), stage.submeshes.get(operator.name)
        if typed is None or submesh is None:
            yield f"`{operator.name}` has no types, or no place"
            continue
        axes = submesh.axes
        if (typed.number, axes) in seen:
            continue
        seen.add((typed.number, axes))
        counts = len(typed.reads), len(typed.results)
        if counts != (len(operator.inputs), len(operator.outputs)):
            yield f"`{operator.name}` has types for {counts[0]} operands and {counts[1]} results"
        for operand in (*typed.reads, *typed.results):
            yield from (f"`{operator.name}`: {problem}" for problem in _of_operand(operand, axes))


def _of_operand(operand: TypedOperand, axes: Axes) -> Iterator[str]:
    if len(operand.sizes) != len(operand.shape.axes):
        yield f"{len(operand.sizes)} local sizes of {len(operand.shape.axes)} axes"
    for type_ in (operand.type, operand.gradient):
        yield from _of_type(type_, operand.shape, axes)


def _of_type(type_: Type, shape: Shape, axes: Axes) -> Iterator[str]:
    if len(type_.layout.places) != len(axes):
        yield f"{type_.layout} has no placement for each of {axes}"
    names = [*(name for name, _ in type_.time), *type_.owed]
    if len(names) != len({*names}) or {*names} & {axis for axis, _ in axes}:
        yield f"{names} are no indices in time, each once"
    if any(digit.factor >= len(shape.factors) for digit in type_.digits):
        yield f"a digit of {type_.layout} has no factor in {shape.axes}"


# -- functions ---------------------------------------------------------------------------------------------------------


def _malformed(stage: Formed) -> Iterator[str]:
    homes = {(p.weight, p.submesh) for p in stage.params}
    provided = {(p.submesh, name) for p in stage.prologues for name in p.results}
    outputs = {(f.number, o.slot) for f in stage.functions for o in f.outputs}
    arriving = {(m.number, m.consumer) for m in stage.messages}
    for function in stage.functions:
        yield from (f"{function.name}: {problem}" for problem in _of_values(function))
        for given in function.inputs:
            if given.message is None and (given.producer, given.slot) not in outputs:
                yield f"{function.name} reads `{given.slot}`, which function {given.producer} does not leave"
            if given.message is not None and (given.message, function.number) not in arriving:
                yield f"{function.name} reads message {given.message}, which another function gets"
        for prepared in function.prepared:
            if (function.submesh, prepared.source) not in provided:
                yield f"{function.name} reads `{prepared.source}`, which no prologue provides"
        for parameter in function.parameters:
            if (parameter.var.name.value, function.submesh) not in homes:
                yield f"{function.name} reads `{parameter.var.name}`, which has no place on {function.submesh}"
        gathered = {n for section in function.sections for n in (*section.gathers, *section.awaits)}
        yield from (f"there is no flat parameter {n}" for n in gathered if n >= len(stage.flats))


def _of_values(function: Function) -> Iterator[str]:
    """Values that are read before they are there, or made twice."""
    there = {given.var.name for given in function.inputs}
    there |= {prepared.var.name for prepared in function.prepared}
    there |= {parameter.var.name for parameter in function.parameters}
    for section in function.sections:
        for instr in section.body:
            yield from _unknown(reads_of(instr), there)
            for var in results_of(instr):
                if var.name in there:
                    yield f"`{var.name}` is made twice"
                there.add(var.name)
    yield from _unknown((output.name for output in function.outputs), there)


def _unknown(names: Iterable[Name], there: set[Name]) -> Iterator[str]:
    yield from (f"`{name}` is read before it is there" for name in names if name not in there)
