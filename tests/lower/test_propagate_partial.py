"""`propagate_partial`: which operators work on the addends of a sum, and which wait for all parts of it."""

import pytest

from ssdsl.ir.function import Carried
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.lower.operators.partial_sums import propagate_partial
from ssdsl.lower.stages import Summed
from ssdsl.plan.regions import Digit
from tests.lower.by_hand import after, graph_of, ordering, plan_of

HEAD = """
    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
"""
SUM = HEAD + "s[] = sum y[batch, out]\n"
SIZES = {"batch": 8, "in": 4, "out": 6}
IN_SPACE_AND_TIME = pytest.mark.parametrize(
    ("axis", "along"), [("dp", Axis("dp")), ("pp", Time("dp"))], ids=["devices", "time"]
)


def carried(text: str, axes: dict[str, int], splits: dict[str, str], **places: tuple[str, int]) -> Summed:
    return after(propagate_partial, plan_of(graph_of(text, **SIZES), axes, splits, places))


@IN_SPACE_AND_TIME
def test_a_linear_operator_behind_a_sum_works_on_its_addends(axis: str, along: Coordinate) -> None:
    found = carried(SUM + "loss[] = div s[] 4", {axis: 2}, {"batch": "dp 2"}).sums
    assert found == {"loss": (Carried(along, Digit(2), frozenset({"s"})),)}


@IN_SPACE_AND_TIME
def test_a_whole_term_is_the_addend_of_the_first_part(axis: str, along: Coordinate) -> None:
    text = SUM + "p[] = sum w[in, out]\nloss[] = add s[] p[]"
    assert carried(text, {axis: 2}, {"batch": "dp 2"}).sums == {
        "loss": (Carried(along, Digit(2), frozenset({"s", "p"})),)
    }


@IN_SPACE_AND_TIME
def test_an_operator_that_is_not_linear_works_on_the_completed_sum(axis: str, along: Coordinate) -> None:
    text = SUM + "r[] = relu s[]\nloss[] = div r[] 4"
    assert carried(text, {axis: 2}, {"batch": "dp 2"}).sums == {}


def test_a_product_of_two_sums_works_on_completed_ones() -> None:
    assert carried(SUM + "loss[] = mul s[] s[]", {"dp": 2}, {"batch": "dp 2"}).sums == {}


def test_a_tensor_stays_a_sum_where_only_linear_operators_lead_to_the_loss() -> None:
    tail, split = "z[batch, out] = add y[batch, out] y[batch, out]\n", {"y.in": "tp 2"}
    found = carried(HEAD + tail + "loss[] = sum z[batch, out]", {"tp": 2}, split).sums
    assert found == {
        "z": (Carried(Axis("tp"), Digit(2), frozenset({"y"})),),
        "loss": (Carried(Axis("tp"), Digit(2), frozenset({"z"})),),
    }
    more = "r[batch, out] = relu z[batch, out]\nloss[] = sum r[batch, out]"
    assert carried(HEAD + tail + more, {"tp": 2}, split).sums == {}


def test_sums_along_two_coordinates_are_carried_together() -> None:
    found = carried(SUM + "loss[] = div s[] 4", {"dp": 2}, {"batch": "dp 2, m 2"}).sums["loss"]
    assert [c.coordinate for c in found if isinstance(c, Carried)] == [Axis("dp"), Time("m")]


def test_a_sum_over_devices_is_completed_before_it_goes_to_others_and_one_in_time_is_not() -> None:
    text, axes = SUM + "loss[] = div s[] 4", {"pp": 2, "dp": 2}
    places = {"y": ("pp", 0), "s": ("pp", 0), "loss": ("pp", 1)}
    found = carried(text, axes, {"batch": "dp 2, m 2"}, **places).sums
    assert found == {"loss": (Carried(Time("m"), Digit(2), frozenset({"s"})),)}


def test_a_sum_is_not_carried_where_another_operand_waits_for_all_its_parts() -> None:
    """Its task for the first part would wait for the last one."""
    text = SUM + "r[] = relu s[]\nq[] = sum y[batch, out]\nloss[] = add q[] r[]"
    assert carried(text, {"pp": 2}, {"batch": "m 2"}).sums == {}
    on_devices = carried(text, {"dp": 2}, {"batch": "dp 2"}).sums
    assert on_devices == {"loss": (Carried(Axis("dp"), Digit(2), frozenset({"q", "r"})),)}


LATE = SUM + "r[] = relu s[]\nz[batch, out] = mul y[batch, out] r[]\nloss[] = sum z[batch, out]"


def test_the_tail_of_the_loss_that_waits_for_all_parts_of_an_ordered_index_runs_once() -> None:
    plan = plan_of(graph_of(LATE, **SIZES), {"pp": 2}, {"batch": "m 2"})
    late = after(propagate_partial, ordering(plan, "s z loss", "m")).plan
    assert [i.name for i in late.of("z").indices] == [] and [i.name for i in late.of("s").indices] == ["m"]
    assert after(propagate_partial, plan).plan == plan  # nothing is ordered: its parts take turns


def test_of_several_indices_it_loses_those_that_are_ordered() -> None:
    plan = plan_of(graph_of(LATE, **SIZES), {"pp": 2}, {"batch": "m 2, n 2"})
    late = after(propagate_partial, ordering(plan, "s z loss", "m")).plan
    assert [i.name for i in late.of("z").indices] == ["n"]


def test_in_front_of_the_loss_an_operator_that_waits_keeps_its_indices() -> None:
    """The order is a circle then, which is an error of its own: only the tail of the loss runs late."""
    text = LATE.replace("loss[] = sum z[batch, out]", "weight u[out, in]\nq[batch, in] = mm z[batch, out] u[out, in]\n")
    plan = plan_of(graph_of(text + "loss[] = sum q[batch, in]", **SIZES), {"pp": 2}, {"batch": "m 2"})
    assert after(propagate_partial, ordering(plan, "s z q loss", "m")).plan.of("z").indices == plan.of("z").indices
