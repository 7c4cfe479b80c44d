"""`rewrite`: the rules in order, which leave a plan alone that asks for no other operators."""

import pytest

from ssdsl.plan.plan import Index, Plan
from ssdsl.plan.regions import parts_of
from ssdsl.record import replace
from ssdsl.rewrite.divide_dims import divide_dims, undivided_by
from ssdsl.rewrite.rewrite import REWRITES, rewrite
from tests.lower.by_hand import described, graph_of, plan_of, saying

SIZES = {"batch": 8, "in": 4, "out": 6}
LINES = """
    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
    z[batch, out] = relu y[batch, out]
    loss[] = sum z[batch, out]
"""


def plan(*sizes: int) -> Plan:
    """The batch cut by `dp`, and inside of it by `m` into parts of these sizes."""
    found = plan_of(graph_of(LINES, **SIZES), {"dp": 2}, {"batch": "dp 2, m 2"})
    for name, record in list(found.operators.items()):
        dp, m = record.indices
        found = saying(
            found, name, indices=(dp, replace(m, digit=replace(m.digit, at=parts_of(sizes) if sizes else None)))
        )
    return found


def test_a_plan_that_needs_no_other_operators_stays() -> None:
    same, seen = plan(), list[str]()
    assert rewrite(same, lambda name, found: seen.append(name)) is same
    rules = ["copy_constants", "copy_operators", "share_weights", "route_rows", "divide_dims"]
    assert seen == [rule.__name__ for rule in REWRITES] == rules


@pytest.mark.parametrize("sizes", [(3, 1), (6, 2)])
def test_unequal_parts_are_of_a_dimension_of_their_own(sizes: tuple[int, ...]) -> None:
    found = divide_dims(plan(*sizes))
    assert described(found).splitlines()[1] == "z = relu y on gpus (batch 2 by dp, batch 4 by m)"
    indices: tuple[Index, ...] = found.of("z").indices
    assert [(i.name, i.dim, i.digit.at) for i in indices] == [("dp", 0, None), ("m", 1, parts_of((3, 1)))]


def test_parts_that_differ_between_the_equal_ones_cannot_be_divided() -> None:
    assert divide_dims(same := plan(5, 3)) is same and undivided_by(same, 0) is same.graph.operators[0]
