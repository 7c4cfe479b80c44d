"""The proof accepts every program that the lowering makes and refutes each that one change has spoilt; and whatever a
program says, it does not crash."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ssdsl.ir.comm import AllGather, AllToAll, Transfer
from ssdsl.ir.function import Conversion, OpPart, results_of
from ssdsl.ir.layout import REPLICATE, Cut, Layout
from ssdsl.ir.program import Program
from ssdsl.ir.references import check_references
from ssdsl.ir.value import Name
from ssdsl.prove.failures import ProofFailed
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.text.diagnostic import InternalError
from tests.prove.spoil import spoil

Change = tuple[str, Program]


def failures(program: Program) -> tuple[ProofFailed, ...]:
    return prove(program).failures


@pytest.mark.parametrize(
    "name", ["pipeline", "interlaced", "halves", "tied", "zero_1", "zero_2", "signal", "both_ways"]
)
def test_an_action_left_out_or_done_twice(program_of: Callable[[str], Program], name: str) -> None:
    program = program_of(name)
    assert not failures(program)
    for number, role in enumerate(program.roles):
        for k, action in enumerate(role.actions):
            without = (*role.actions[:k], *role.actions[k + 1 :])
            twice = (*role.actions[:k], action, *role.actions[k:])
            assert failures(_with_actions(program, number, without)), action
            assert failures(_with_actions(program, number, twice)), action


def test_roles_that_wait_for_each_other(program_of: Callable[[str], Program]) -> None:
    program = program_of("pipeline")
    first, last = program.roles
    receives = [a for a in first.actions if "Wait" in type(a).__name__][:1]
    moved = (*receives, *(a for a in first.actions if a not in receives))
    assert failures(replace(program, roles=(replace(first, actions=moved), last)))


@pytest.mark.parametrize("name", ["sequence_parallel", "pipeline", "zero_3"])
def test_what_refers_to_nothing(program_of: Callable[[str], Program], name: str) -> None:
    program = program_of(name)
    for what, changed in _changes(program):
        assert failures(changed), what


def test_rows_at_experts_that_are_cut(program_of: Callable[[str], Program]) -> None:
    """Where their rows begin and end is known when it runs; a step that cuts them elsewhere would mix them."""
    program = program_of("routed")
    assert not failures(program)
    (function,) = program.functions
    made = {v.name.value: v for i in function.body() for v in results_of(i)}
    rows = made["relu_at_experts"]
    whole = replace(rows, name=rows.name._replace(version=1), type=replace(rows.type, layout=Layout((REPLICATE,))))
    for step in (AllGather(("ep",), 128, Cut(0, 1, 2)), AllToAll(("ep",), 64, (Cut(0, 1, 2),), (Cut(1, 1, 2),))):
        spoilt = [*function.sections[0].body, Conversion(rows.name, whole, (step,), ())]
        sections = (replace(function.sections[0], body=tuple(spoilt)), *function.sections[1:])
        found = failures(_with_function(program, replace(function, sections=sections)))
        assert any("an all_to_all of rows" in f.wanted for f in found)
    step = AllGather(("ep",), 128, Cut(1, 1, 2))  # along their width they are as other values
    spoilt = [*function.sections[0].body, Conversion(rows.name, whole, (step,), ())]
    sections = (replace(function.sections[0], body=tuple(spoilt)), *function.sections[1:])
    found = failures(_with_function(program, replace(function, sections=sections)))
    assert not any("rows" in f.wanted for f in found)


def test_rows_that_travel_without_their_numbers(program_of: Callable[[str], Program]) -> None:
    """Both ends have to know how many rows there are, of each run; other steps have no use for numbers."""
    program = program_of("travelling")
    assert not failures(program)
    (function,) = program.functions
    moved = [i for i in function.body() if isinstance(i, Conversion) and len(i.also) == 2]
    plain = [i for i in function.body() if isinstance(i, Conversion) and not i.also]
    assert len(moved) == 2
    assert len(plain) == 1
    others = [replace(moved[0], also=()), replace(moved[0], also=(moved[0].source, moved[0].source))]
    others += [replace(moved[0], forward=moved[0].forward * 2), replace(plain[0], also=moved[0].also)]
    for old, new in zip((moved[0], moved[0], moved[0], plain[0]), others, strict=True):
        body = tuple(new if i is old else i for i in function.sections[0].body)
        sections = (replace(function.sections[0], body=body), *function.sections[1:])
        assert failures(_with_function(program, replace(function, sections=sections)))


def test_what_refers_to_nothing_is_our_mistake(program_of: Callable[[str], Program]) -> None:
    program = program_of("pipeline")
    with pytest.raises(InternalError, match="not legal:\nthe model has no value `nothing`"):
        check_references(replace(program, losses=(replace(program.losses[0], name=Name("nothing")),)))


@pytest.mark.parametrize(
    "name", ["pipeline", "interlaced", "halves", "tied", "zero_3", "travelling", "prologue", "slices"]
)
def test_nothing_makes_it_crash(program_of: Callable[[str], Program], name: str) -> None:
    program, chance = program_of(name), random.Random(name)
    refuted = sum(bool(failures(spoil(program, chance)[0])) for _ in range(60))
    assert refuted > 30  # the others have changed a name that is only shown, say


def _with_actions(program: Program, number: int, actions: tuple[Any, ...]) -> Program:
    role = replace(program.roles[number], actions=actions)
    return replace(program, roles=(*program.roles[:number], role, *program.roles[number + 1 :]))


def _changes(program: Program) -> Iterator[Change]:
    """A program with one reference spoilt."""
    for function in program.functions:
        for k, section in enumerate(function.sections):
            for n, instr in enumerate(section.body):
                wrong: list[Any] = []
                if isinstance(instr, OpPart):
                    wrong += [replace(instr, reads=(Name("nothing"), *instr.reads[1:]))]
                    wrong += [replace(instr, results=instr.results * 2), replace(instr, operator="nothing")]
                elif isinstance(instr, Conversion):
                    steps = tuple(replace(s, axes=("nowhere",)) for s in instr.forward or instr.backward)
                    wrong += [replace(instr, source=Name("nothing")), replace(instr, forward=steps)]
                for bad in wrong:
                    body = (*section.body[:n], bad, *section.body[n + 1 :])
                    sections = (*function.sections[:k], replace(section, body=body), *function.sections[k + 1 :])
                    yield str(bad), _with_function(program, replace(function, sections=sections))
            if section.gathers:
                sections = (*function.sections[:k], replace(section, gathers=()), *function.sections[k + 1 :])
                yield "no gathers", _with_function(program, replace(function, sections=sections))
        for given in function.inputs:
            others = tuple(i for i in function.inputs if i is not given)
            for bad in (
                replace(given, slot="none"),
                replace(given, time=()),
                replace(given, gradient=not given.gradient),
            ):
                yield str(bad), _with_function(program, replace(function, inputs=(*others, bad)))
        for output in function.outputs:
            yield "no output", _with_function(program, replace(function, outputs=()))
            twice = replace(function, outputs=(*function.outputs, output))
            yield "output twice", _with_function(program, twice)
    for message in program.messages:
        assert isinstance(message, Transfer)
        for bad in (
            replace(message, source=message.target),
            replace(message, time=()),
            replace(message, backward=None),
            replace(message, forward=replace(message.forward, pieces=())),
        ):
            yield str(bad), replace(program, messages=(bad, *program.messages[1:]))
    for number in range(len(program.flats)):
        flats = list(program.flats)
        flats[number] = replace(flats[number], weights=flats[number].weights[1:])
        yield "a weight in no flat parameter", replace(program, flats=tuple(flats))
    yield "no parameters", replace(program, params=())
    yield "no loss", replace(program, losses=(replace(program.losses[0], name=Name("nothing")),))


def _with_function(program: Program, function: Any) -> Program:
    functions = list(program.functions)
    functions[function.number] = function
    return replace(program, functions=tuple(functions))
