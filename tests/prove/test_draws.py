"""Random operators: programs with dropout are proved, and what draws other numbers is refuted."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ssdsl.ir.function import Op, Reshard, Slice
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator, Ref, Stage
from ssdsl.model.load import load
from ssdsl.prove.failures import Rule
from ssdsl.prove.prove import prove
from tests.prove.mutations import instructions, mutants, put
from tests.prove.running import runs_wrong

MODEL = "gpt:tiny,layers=2,dropout=0.1"
PLANS = ("data_parallel", "sequence_parallel", "zero_bubble", "uneven", "recomputed", "co_shard", "ulysses")
Found = Iterator[tuple[str, Program]]


def with_operator(program: Program, operator: Operator) -> Program:
    """Another operator in the model itself: a capture that went wrong."""
    at = next(k for k, o in enumerate(program.graph.operators) if o.name == operator.name)
    graph = replace(program.graph, operators=put(program.graph.operators, at, operator))
    return replace(program, plan=replace(program.plan, graph=graph))


def renamed(item: object, old: str, new: str) -> object:
    match item:
        case Ref(value):
            return Ref(new if value == old else value)
        case tuple():
            return tuple(renamed(i, old, new) for i in item)
    return item


def draws(program: Program) -> list[Operator]:
    return [o for o in program.graph.operators if o.target in ("ssdsl::dropout", "ssdsl::attention_dropout")]


def key_of(operator: Operator) -> str:
    return next(i.value for i in operator.inputs if i.value.startswith("key_"))


def key_of_another_draw(program: Program) -> Found:
    """In the model, so that every part agrees."""
    first, *others = draws(program)
    for operator in others:
        old, new = key_of(operator), key_of(first)
        inputs = tuple(replace(i, value=new) if i.value == old else i for i in operator.inputs)
        args = renamed(operator.args, old, new)
        changed = with_operator(program, replace(operator, inputs=inputs, args=args))  # type: ignore[arg-type]
        for where, instr, become in instructions(changed):
            if isinstance(instr, Op) and instr.operator == operator.name:
                reads = tuple(Name(new) if r == Name(old) else r for r in instr.reads)
                yield where, become(replace(instr, reads=reads))


def key_of_another_draw_in_a_part(program: Program) -> Found:
    """In the program only."""
    other = Name(key_of(draws(program)[0]))
    for where, instr, become in instructions(program):
        if isinstance(instr, Op) and instr.operator in {o.name for o in draws(program)[1:]}:
            yield where, become(replace(instr, reads=tuple(other if "key_" in r.value else r for r in instr.reads)))


def key_of_another_step(program: Program) -> Found:
    """Keys made once, as constants are."""
    for p, prologue in enumerate(program.prologues):
        stale = [i.operator for i in prologue.body if isinstance(i, Op)]
        body = tuple(i for i in prologue.body if not isinstance(i, Op))
        changed = replace(prologue, constants=(*prologue.constants, *stale), body=body)
        yield f"prologue {p}", replace(program, prologues=put(program.prologues, p, changed))
    for operator in program.graph.operators:
        if operator.kind == "key":
            yield f"{operator.name} a constant", with_operator(program, replace(operator, stage=Stage.CONSTANT))


def sizes_of_the_part(program: Program) -> Found:
    """But the first: of it the position in the whole does not depend."""
    for operator in draws(program):
        at = next(k for k, a in enumerate(operator.args) if isinstance(a, tuple) and isinstance(a[0], int))
        for axis in range(1, len(operator.args[at])):
            sizes = put(operator.args[at], axis, operator.args[at][axis] // 2)
            yield operator.name, with_operator(program, replace(operator, args=put(operator.args, at, sizes)))


def positions_of_another_axis(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Op) and instr.operator in {o.name for o in draws(program)}:
            positions = [k for k, r in enumerate(instr.reads) if r.value.startswith("positions")]
            a, b = positions[0], positions[1]
            yield where, become(replace(instr, reads=put(put(instr.reads, a, instr.reads[b]), b, instr.reads[a])))


def positions_of_another_part(program: Program) -> Found:
    """The whole's, or another digit's."""
    for where, instr, become in instructions(program):
        if isinstance(instr, (Reshard, Slice)) and instr.source.value.startswith("positions"):
            if isinstance(instr, Reshard):
                yield where, become(replace(instr, forward=()))
            else:
                cut = replace(instr.cut, count=2 * instr.cut.count)
                yield where, become(replace(instr, cut=cut))


def positions_that_begin_elsewhere(program: Program) -> Found:
    for operator in program.graph.operators:
        if operator.kind == "positions":
            yield operator.name, with_operator(program, replace(operator, args=(*operator.args, operator.args[1] + 1)))


WRONG: tuple[Callable[[Program], Found], ...] = (
    key_of_another_draw,
    key_of_another_draw_in_a_part,
    key_of_another_step,
    sizes_of_the_part,
    positions_of_another_axis,
    positions_of_another_part,
    positions_that_begin_elsewhere,
)


@pytest.mark.parametrize("plan", PLANS)
def test_dropout_is_proved_and_other_numbers_are_refuted(compiled: Callable[..., Program], plan: str) -> None:
    program = compiled(plan, MODEL)
    assert prove(program).failures == ()
    for mutation in WRONG:
        for where, mutant in mutation(program):
            assert prove(mutant).failures, f"{mutation.__name__}: {where}"


def test_every_kind_has_mutants(compiled: Callable[..., Program]) -> None:
    programs = [compiled(plan, MODEL) for plan in PLANS]
    for mutation in WRONG:
        assert any(next(mutation(p), None) is not None for p in programs), mutation.__name__


def test_a_wrong_draw_is_said(compiled: Callable[..., Program]) -> None:
    _, mutant = next(key_of_another_draw(compiled("data_parallel", MODEL)))
    assert {f.rule for f in prove(mutant).failures} == {Rule.DRAW.value}


@pytest.mark.parametrize("mutation", [key_of_another_draw, sizes_of_the_part, positions_of_another_part])
def test_they_train_on_other_numbers(compiled: Callable[..., Program], mutation: Callable[[Program], Found]) -> None:
    """What the proof refutes is wrong indeed."""
    _, mutant = next(mutation(compiled("sequence_parallel", MODEL)))
    assert runs_wrong(mutant, load(MODEL))


def test_mutants_of_a_program_with_dropout(compiled: Callable[..., Program]) -> None:
    kinds = ("step_dropped", "step_of_another_group", "step_of_another_kind")
    program = compiled("sequence_parallel", MODEL)
    assert [str(m) for m in mutants(program, kinds, most=6) if not prove(m.program).failures] == []
