"""`join_readers`: which operators on weights alone run in the tasks that read them, and which run once a step."""

import pytest

from ssdsl.ir.value import TimeIndex
from ssdsl.lower.functions.form_functions import join_readers
from ssdsl.lower.stages import Grouped
from ssdsl.plan.plan import Mark
from ssdsl.record import replace
from tests.lower.by_hand import SPAN, after, graph_of, ordering, plan_of, saying

SIZES = {"batch": 8, "in": 4, "out": 6}
M = TimeIndex("m", 2)
VIEW = """
    input x[batch, in]
    weight v[out, in]
    w[in, out] = t v[out, in]
    y[batch, out] = mm x[batch, in] w[in, out]
    loss[] = sum y[batch, out]
"""
BIAS = """
    input x[batch, in]
    weight w[in, out]
    weight b[out]
    weight c[out]
    a[out] = add b[out] c[out]
    y[batch, out] = mm x[batch, in] w[in, out]
    z[batch, out] = add y[batch, out] a[out]
    loss[] = sum z[batch, out]
"""
KEPT = BIAS.replace("add y[batch, out] a[out]", "mul y[batch, out] a[out]")  # backward of a product keeps its factors


def joined(text: str, splits: dict[str, str] | None = None, **places: tuple[str, int]) -> Grouped:
    splits = {"batch": "m 2"} if splits is None else splits
    return after(join_readers, plan_of(graph_of(text, **SIZES), {"pp": 2}, splits, places))


@pytest.mark.parametrize(("text", "name"), [(VIEW, "w"), (BIAS, "a")], ids=["a view", "a sum"])
def test_an_operator_on_weights_runs_in_each_task_that_reads_it(text: str, name: str) -> None:
    found = joined(text)
    assert found.joined == {name: (M,)}
    assert found.kinds[name] == found.kinds["y"] and found.levels[name] == found.levels["y"]


def test_its_gradient_stays_an_addend_along_the_index_that_it_gets() -> None:
    assert joined(VIEW).sunk["w"] == {"m"}


def test_nothing_joins_where_readers_have_no_index_in_time() -> None:
    found = joined(VIEW, {})
    assert found.joined == {} and found.sunk == {}


def test_what_backward_keeps_is_computed_once_a_step() -> None:
    found = joined(KEPT)
    assert found.joined == {} and found.kinds["a"][1] == ()


def test_what_is_recomputed_joins_even_if_backward_keeps_it() -> None:
    plan = plan_of(graph_of(KEPT, **SIZES), {"pp": 2}, {"batch": "m 2"})
    found = after(join_readers, saying(plan, "a y z", checkpoint=Mark(0, SPAN)))
    assert found.joined == {"a": (M,)}


def test_an_operator_with_readers_in_two_functions_runs_once() -> None:
    text = BIAS.replace("loss[]", "p[]") + "q[] = sum a[out]\nloss[] = add p[] q[]"
    assert joined(text).joined == {}


def test_an_operator_whose_reader_is_on_other_devices_runs_once() -> None:
    places = {"z": ("pp", 1), "loss": ("pp", 1), "a": ("pp", 0), "y": ("pp", 0)}
    assert joined(BIAS, **places).joined == {}
    assert joined(BIAS, **places | {"a": ("pp", 1)}).joined == {"a": (M,)}


def test_an_operator_of_which_each_task_reads_another_part_runs_once() -> None:
    assert joined(BIAS, {"z.out": "m 2", "y.out": "m 2"}).joined == {}


def test_an_operator_that_the_plan_orders_apart_from_its_readers_runs_once() -> None:
    plan = plan_of(graph_of(BIAS, **SIZES), {"pp": 2}, {"batch": "m 2"})
    assert after(join_readers, ordering(plan, "y z", "m")).joined == {}
    assert after(join_readers, ordering(plan, "a y z", "m")).joined == {"a": (M,)}


def test_a_chain_of_them_joins_together() -> None:
    text = """
        input x[batch, in]
        weight w[in, out]
        weight b[out]
        weight c[out]
        a[out] = add b[out] c[out]
        d[out] = add a[out] c[out]
        y[batch, out] = mm x[batch, in] w[in, out]
        z[batch, out] = add y[batch, out] d[out]
        loss[] = sum z[batch, out]
    """
    assert joined(text).joined == {"a": (M,), "d": (M,)}


def test_a_report_that_reads_it_gets_the_result_of_one_run() -> None:
    plan = plan_of(graph_of(BIAS, **SIZES), {"pp": 2}, {"batch": "m 2"})
    reported = replace(plan, graph=replace(plan.graph, outputs={"bias": "a"}))
    assert after(join_readers, reported).joined == {}
