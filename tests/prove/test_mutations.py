"""Every mutant of a right program is refuted, unless it computes the same.

A few of each kind for each plan here; `SSDSL_MUTANTS=all` takes all of them.
"""

import os
from collections.abc import Callable

import pytest

from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from tests.prove.mutations import MUTATIONS, Mutant, mutants

MOST = None if (wanted := os.environ.get("SSDSL_MUTANTS", "2")) == "all" else int(wanted)

PROGRAMS: tuple[tuple[str, dict[str, int]], ...] = (
    ("megatron", {"D": 2}),
    ("zero", {"Z": 1}),
    ("zero", {"Z": 2}),
    ("zero", {"Z": 3}),
    ("co_shard", {}),
    ("zero_bubble", {}),
    ("sequence_parallel", {}),
    ("tied_stages", {}),
    ("uneven", {}),
    ("interlaced_loss", {}),
    ("unequal_meshes", {}),
    ("halves_everywhere", {}),
    ("recomputed", {}),
    ("across", {}),
)


def is_harmless(mutant: Mutant) -> str:
    """Why a mutant computes what the program computes; empty if it does not."""
    if mutant.kind == "action_dropped" and " Free(" in mutant.where:
        return "a value is kept longer: only memory"
    return ""


@pytest.mark.parametrize(("plan", "params"), PROGRAMS, ids=str)
def test_wrong_programs_are_refuted(compiled: Callable[..., Program], plan: str, params: dict[str, int]) -> None:
    program = compiled(plan, **params)
    assert prove(program).failures == ()
    accepted = [str(m) for m in mutants(program, most=MOST) if not is_harmless(m) and not prove(m.program).failures]
    assert accepted == []


def test_every_kind_has_mutants(compiled: Callable[..., Program]) -> None:
    """No generator is idle on all programs."""
    idle = set(MUTATIONS)
    for plan, params in PROGRAMS:
        program = compiled(plan, **params)
        idle -= {kind for kind in idle if next(iter(MUTATIONS[kind](program)), None) is not None}
    assert idle == set()
