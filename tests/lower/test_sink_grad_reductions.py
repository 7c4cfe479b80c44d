"""`sink_grad_reductions`: the operators on weights alone through which a gradient goes as an addend."""

from ssdsl.ir.layout import PARTIAL, REPLICATE
from ssdsl.lower.operators.partial_sums import sink_grad_reductions
from ssdsl.lower.operators.type_operators import type_operators
from ssdsl.lower.stages import Sunk
from tests.lower.by_hand import after, graph_of, plan_of

SIZES = {"batch": 8, "in": 4, "out": 6}
TEXT = """
    input x[batch, in]
    weight v[out, in]
    weight u[out, in]
    a[out, in] = add v[out, in] u[out, in]
    w[in, out] = t a[out, in]
    y[batch, out] = mm x[batch, in] w[in, out]
    loss[] = sum y[batch, out]
"""


def sunk(splits: dict[str, str], text: str = TEXT, **places: tuple[str, int]) -> dict[str, frozenset[str]]:
    return lowered(splits, text, **places).sunk


def lowered(splits: dict[str, str], text: str = TEXT, **places: tuple[str, int]) -> Sunk:
    return after(sink_grad_reductions, plan_of(graph_of(text, **SIZES), {"pp": 2, "dp": 2}, splits, places))


def test_gradients_stay_partial_through_all_operators_on_weights_alone() -> None:
    assert sunk({"batch": "dp 2"}) == {"a": frozenset({"dp"}), "w": frozenset({"dp"})}


def test_the_gradient_of_such_a_result_is_an_addend_and_its_value_is_whole() -> None:
    typed = after(type_operators, plan_of(graph_of(TEXT, **SIZES), {"dp": 2}, {"batch": "dp 2"})).typed
    (left,) = typed["a"].results
    assert (left.type.layout.places, left.gradient.layout.places) == ((REPLICATE,), (PARTIAL,))


def test_nothing_stays_partial_where_nothing_is_a_sum() -> None:
    assert sunk({}) == {} == sunk({"out": "dp 2"})


def test_an_operator_on_data_gets_the_completed_gradient() -> None:
    text = """
        input x[batch, in]
        weight w[in, mid]
        weight v[mid, out]
        h[batch, mid] = mm x[batch, in] w[in, mid]
        y[batch, out] = mm h[batch, mid] v[mid, out]
        loss[] = sum y[batch, out]
    """
    plan = plan_of(graph_of(text, **SIZES, mid=4), {"tp": 2}, {"out": "tp 2"})
    assert after(type_operators, plan).typed["y"].reads[0].gradient.layout.places == (PARTIAL,)
    assert after(sink_grad_reductions, plan).sunk == {}


def test_along_its_own_split_an_operator_needs_the_completed_gradient() -> None:
    assert sunk({"batch": "dp 2", "w.in": "dp 2"}) == {}
    assert sunk({"batch": "pp 2, dp 2", "w.in": "dp 2"})["w"] == {"pp"}


def test_a_gradient_from_other_devices_comes_completed() -> None:
    assert sunk({"batch": "dp 2"}, y=("pp", 1), loss=("pp", 1)) == {}
    assert sunk({"batch": "dp 2"}, **dict.fromkeys(("a", "w", "y", "loss"), ("pp", 1))).keys() == {"a", "w"}


def test_one_reader_elsewhere_is_enough_for_the_gradient_to_be_completed() -> None:
    text = TEXT.replace("loss[]", "p[]") + "q[] = sum a[out, in]\n loss[] = add p[] q[]"
    here = dict.fromkeys(("a", "w", "y", "p"), ("pp", 0))
    assert sunk({"batch": "dp 2"}, text, **here, q=("pp", 1), loss=("pp", 1)) == {"w": frozenset({"dp"})}
