"""`form_functions`: which operators become one function, and in which order functions stand."""

from ssdsl.ir.value import TimeIndex
from ssdsl.lower.functions.form_functions import form_functions
from ssdsl.plan.plan import Phase, Plan
from tests.lower.by_hand import after, graph_of, ordering, plan_of, submesh

SIZES = {"batch": 8, "in": 4, "mid": 4, "out": 4}
CHAIN = """
    input x[batch, in]
    weight v[in, mid]
    weight w[mid, out]
    y[batch, mid] = mm x[batch, in] v[in, mid]
    r[batch, mid] = relu y[batch, mid]
    z[batch, out] = mm r[batch, mid] w[mid, out]
    loss[] = sum z[batch, out]
"""
FORK = """
    input x[batch, in]
    weight w[in, out]
    a[batch, out] = mm x[batch, in] w[in, out]
    b[batch, out] = relu a[batch, out]
    c[batch, out] = mul a[batch, out] b[batch, out]
    loss[] = sum c[batch, out]
"""
AXES = {"pp": 2, "dp": 2}


def segments(plan: Plan) -> list[list[str]]:
    return [[o.name for o in s.operators] for s in after(form_functions, plan).segments]


def chain(splits: dict[str, str] | None = None, **places: tuple[str, int]) -> Plan:
    return plan_of(graph_of(CHAIN, **SIZES), AXES, splits, places)


def test_operators_on_the_same_devices_with_the_same_indices_are_one_function() -> None:
    (segment,) = after(form_functions, chain({"batch": "dp 2, m 2"})).segments
    assert [o.name for o in segment.operators] == ["y", "r", "z", "loss"]
    assert (segment.time, segment.submesh) == ((TimeIndex("m", 2),), submesh(AXES))


def test_other_devices_are_another_function_and_another_stage() -> None:
    plan = chain(y=("pp", 0), r=("pp", 0), z=("pp", 1), loss=("pp", 1))
    assert segments(plan) == [["y", "r"], ["z", "loss"]]
    first, second = after(form_functions, plan).segments
    assert (first.submesh, second.submesh) == (submesh(AXES, pp=0), submesh(AXES, pp=1))
    assert first.stage != second.stage


def test_another_index_in_time_is_another_function_and_an_axis_is_not() -> None:
    assert segments(chain({"y.batch": "m 2", "r.batch": "m 2"})) == [["y", "r"], ["z", "loss"]]
    assert segments(chain({"y.batch": "dp 2", "r.batch": "dp 2"})) == [["y", "r", "z", "loss"]]


def test_a_set_that_an_order_names_is_a_function_of_its_own() -> None:
    assert segments(ordering(chain({"batch": "m 2"}), "z loss", "m")) == [["y", "r"], ["z", "loss"]]


def test_a_part_that_reads_all_parts_of_another_operator_is_in_a_later_function() -> None:
    assert segments(chain({"y.batch": "m 2", "r.batch": "m 2", "z.out": "m 2", "loss.out": "m 2"})) == [
        ["y", "r"],
        ["z", "loss"],
    ]


def test_functions_do_not_wait_for_each_other_in_a_circle() -> None:
    """The product reads the first operator and one elsewhere that reads the first: it cannot be in the first's."""
    places = {"a": ("pp", 0), "b": ("pp", 1), "c": ("pp", 0), "loss": ("pp", 0)}
    plan = plan_of(graph_of(FORK, **SIZES), AXES, {}, places)
    assert segments(plan) == [["a"], ["b"], ["c", "loss"]]
    one, _, other = after(form_functions, plan).segments
    assert one.stage == other.stage  # the same devices, indices and sets


def test_an_operator_stands_as_late_as_its_readers_allow() -> None:
    """`d` could run first; with the function that reads it there is one function less."""
    text = """
        input x[batch, in]
        weight w[in, out]
        weight u[out]
        a[batch, out] = mm x[batch, in] w[in, out]
        b[batch, out] = relu a[batch, out]
        c[batch, out] = mul a[batch, out] b[batch, out]
        d[out] = add u[out] u[out]
        e[batch, out] = add c[batch, out] d[out]
        loss[] = sum e[batch, out]
    """
    places = {"b": ("pp", 1)} | dict.fromkeys(("a", "c", "d", "e", "loss"), ("pp", 0))
    assert segments(plan_of(graph_of(text, **SIZES), AXES, {}, places)) == [["a"], ["b"], ["c", "d", "e", "loss"]]


def test_what_nothing_else_reads_stands_with_what_it_reads() -> None:
    text = FORK.replace("loss[]", "d[] = sum a[batch, out]\n    loss[]")
    places = {"b": ("pp", 1)} | dict.fromkeys(("a", "c", "d", "loss"), ("pp", 0))
    assert segments(plan_of(graph_of(text, **SIZES), AXES, {}, places)) == [["a", "d"], ["b"], ["c", "loss"]]


def test_backward_runs_in_halves_where_an_order_names_one() -> None:
    plan = chain({"batch": "m 2"})
    for phase, wanted in ((Phase.WGRAD, True), (Phase.DGRAD, True), (Phase.BACKWARD, False), (None, False)):
        found = after(form_functions, ordering(plan, "y r", "m", phase)).segments
        assert [s.in_halves for s in found] == [wanted, False], phase
