"""Each pass leads from one stage to the next, and a stage that says something else than its checks is refused."""

import itertools
import re
from typing import get_type_hints

import pytest

from ssdsl.lower.check_stages import check_formed, check_typed
from ssdsl.lower.functions.number_kinds import number_kinds
from ssdsl.lower.lower import PASSES, Pass
from ssdsl.lower.operators.type_operators import type_operators
from ssdsl.lower.stages import Formed, TypedGraph
from ssdsl.record import replace
from ssdsl.text.diagnostic import InternalError
from tests.lower.by_hand import after, graph_of, plan_of

TEXT = """
    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
    loss[] = sum y[batch, out]
"""
PLAN = plan_of(graph_of(TEXT, batch=8, **{"in": 4}, out=6), {"dp": 2}, {"batch": "dp 2"})


@pytest.mark.parametrize(("step", "then"), [*itertools.pairwise(PASSES)], ids=lambda step: step.__name__)
def test_a_pass_takes_what_the_one_before_it_leaves(step: Pass, then: Pass) -> None:
    left, (taken, _) = get_type_hints(step)["return"], get_type_hints(then).values()
    assert issubclass(left, taken)


def typed() -> TypedGraph:
    return after(type_operators, PLAN)


def formed() -> Formed:
    return after(number_kinds, PLAN)


def test_what_the_passes_leave_is_legal() -> None:
    check_typed(typed())
    check_formed(formed())


def test_an_operator_without_types_is_refused() -> None:
    stage = typed()
    with pytest.raises(InternalError, match="`y` has no types"):
        check_typed(replace(stage, typed={"loss": stage.typed["loss"]}))


def test_a_layout_for_other_devices_is_refused() -> None:
    stage = typed()
    (place,) = {*stage.submeshes.values()}
    other = replace(place, mesh=replace(place.mesh, axes=(("dp", 2), ("tp", 2))))
    with pytest.raises(InternalError, match=re.escape("has no placement for each of (('dp', 2), ('tp', 2))")):
        check_typed(replace(stage, submeshes=dict.fromkeys(stage.submeshes, other)))


def test_a_value_that_is_read_before_it_is_there_is_refused() -> None:
    stage = formed()
    (function,) = stage.functions
    sections = tuple(replace(s, body=s.body[::-1]) for s in function.sections)
    with pytest.raises(InternalError, match="is read before it is there"):
        check_formed(replace(stage, functions=(replace(function, sections=sections),)))


def test_a_parameter_that_lives_nowhere_is_refused() -> None:
    with pytest.raises(InternalError, match="`w`, which has no place on gpus"):
        check_formed(replace(formed(), params=()))


def test_a_value_that_no_prologue_provides_is_refused() -> None:
    with pytest.raises(InternalError, match="`x`, which no prologue provides"):
        check_formed(replace(formed(), prologues=()))
