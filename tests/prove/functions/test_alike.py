"""The proof walks the first section of a kind, and finds of the others what it finds of each alone."""

from collections.abc import Callable

import pytest

from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from tests.prove.mutations.mutant import mutants, unshared

LAYERS = "gpt:tiny,layers=4"
PLANS = [("megatron", {"S": 2, "M": 2}), ("megatron", {"S": 1, "M": 2}), ("zero", {"Z": 3}), ("sequence_parallel", {})]


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params"), PLANS)
def test_what_is_shared_is_found_of_each_alone(
    compiled: Callable[..., Program], plan: str, params: dict[str, int]
) -> None:
    program = compiled(plan, LAYERS, **params)
    kinds = [section.kind for f in program.functions for section in f.sections]
    assert len(set(kinds)) < len(kinds)
    shared, alone = prove(program), prove(unshared(program))
    assert replace(shared, seconds=0.0) == replace(alone, seconds=0.0)
    assert not shared.failures


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params"), PLANS)
def test_what_is_wrong_in_one_of_a_kind_is_refuted(
    compiled: Callable[..., Program], plan: str, params: dict[str, int]
) -> None:
    found = list(mutants(compiled(plan, LAYERS, **params), ("section_of_another_kind", "changed_in_its_kind"), 20))
    assert {mutant.kind for mutant in found} == {"section_of_another_kind", "changed_in_its_kind"}
    assert all(prove(mutant.program).failures for mutant in found)
