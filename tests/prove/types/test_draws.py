"""Random operators: programs with dropout are proved, and what draws other numbers is refuted."""

from collections.abc import Callable
from itertools import islice

import pytest

from ssdsl.ir.program import Program
from ssdsl.prove.failures import Rule
from ssdsl.prove.prove import prove
from tests.captured import captured
from tests.prove.mutations import Found, mutants
from tests.prove.mutations.draws import (
    key_of_another_draw,
    key_of_another_draw_in_a_part,
    key_of_another_step,
    positions_of_another_axis,
    positions_of_another_part,
    positions_that_begin_elsewhere,
    sizes_of_the_part,
)
from tests.prove.running import runs_wrong

MODEL = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64,dropout=0.1"
PLANS = ("data_parallel", "sequence_parallel", "zero_bubble", "uneven", "recomputed", "co_shard", "ulysses")


WRONG: tuple[Callable[[Program], Found], ...] = (
    key_of_another_draw,
    key_of_another_draw_in_a_part,
    key_of_another_step,
    sizes_of_the_part,
    positions_of_another_axis,
    positions_of_another_part,
    positions_that_begin_elsewhere,
)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("plan", PLANS)
def test_dropout_is_proved_and_other_numbers_are_refuted(
    compiled: Callable[..., Program], plan: str, every: int
) -> None:
    program = compiled(plan, MODEL)
    assert prove(program).failures == ()
    for mutation in WRONG:
        for where, mutant in islice(mutation(program), 0, None, every):
            assert prove(mutant).failures, f"{mutation.__name__}: {where}"


def test_every_kind_has_mutants(compiled: Callable[..., Program]) -> None:
    programs = [compiled(plan, MODEL) for plan in PLANS]
    for mutation in WRONG:
        assert any(next(mutation(p), None) is not None for p in programs), mutation.__name__


def test_a_wrong_draw_is_said(compiled: Callable[..., Program]) -> None:
    _, mutant = next(key_of_another_draw(compiled("data_parallel", MODEL)))
    assert {f.rule for f in prove(mutant).failures} == {Rule.DRAW.value}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("mutation", [key_of_another_draw, sizes_of_the_part, positions_of_another_part])
def test_they_train_on_other_numbers(compiled: Callable[..., Program], mutation: Callable[[Program], Found]) -> None:
    """What the proof refutes is wrong indeed."""
    _, mutant = next(mutation(compiled("sequence_parallel", MODEL)))
    assert runs_wrong(mutant, captured(MODEL)[0])


def test_mutants_of_a_program_with_dropout(compiled: Callable[..., Program]) -> None:
    kinds = ("step_dropped", "step_of_another_group", "step_of_another_kind")
    program = compiled("sequence_parallel", MODEL)
    assert [str(m) for m in mutants(program, kinds, most=6) if not prove(m.program).failures] == []
