"""A `split` over more devices than there are heads of keys: the rest of the axis cuts the queries of each key."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Stage, Value
from ssdsl.model.ops.rows import ROWS
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

ERRORS = Path(__file__).parent.parent / "errors"
NAMES = ("batch", "ffn", "heads", "heads_per_group", "heads", "heads_per_group")
SIZES = (8, 12, 2, 3, 3, 2)  # two layers: two keys for three queries each, and three for two


def graph() -> Graph:
    """For each layer the operators `q`, `k` and `scores`, with heads and groups, heads alone, and groups alone."""
    operators: list[Operator] = []
    values: dict[str, Value] = {}

    def add(path: str, *axes: tuple[int, ...]) -> None:
        name, classes = f"op_{len(operators)}", [cls for axis in axes for cls in axis]
        dims = tuple(Dim(NAMES[cls], SIZES[cls], cls) for cls in classes)
        made = tuple(tuple(map(classes.index, axis)) for axis in axes)
        sizes = tuple(tuple(SIZES[cls] for cls in axis) for axis in axes)
        values[name] = Value(name, Origin.OPERATOR, tuple(map(prod, sizes)), "float32", True, axes, sizes)
        values[f"{path}.weight"] = Value(f"{path}.weight", Origin.WEIGHT, (4,), "float32", True, (), ())
        inputs = *(Operand(o.name, ()) for o in operators[-1:]), Operand(f"{path}.weight", ())
        form = name, "linear", "aten::linear", path, "model.py:1", Stage.COMPUTE, (), ()
        operators.append(Operator(*form, inputs, (Operand(name, made),), dims, ROWS["aten::linear"]))

    for layer, (heads, groups) in enumerate(((2, 3), (4, 5))):
        add(f"h.{layer}.q", (0,), (heads, groups))
        add(f"h.{layer}.k", (0,), (heads,))
        add(f"h.{layer}.scores", (0,), (groups,))
        add(f"h.{layer}.mlp", (0,), (1,))
    return Graph("shared", tuple(operators), values, operators[-1].name, dict(enumerate(NAMES)), {})


def plan(text: str) -> Plan:
    return interpret_all(parse(Source("plan.ssp", f"{text}\nassign model to gpus\n")), graph())[0]


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(PlanError) as caught:
        plan(text)
    return caught.value.diagnostics


def cuts(found: Plan, path: str) -> list[str]:
    operator = next(o for o in found.graph.operators if o.path == path)
    return [f"{i.name}={i.digit.parts} {operator.dims[i.dim].name}" for i in found.of(operator.name).indices]


def test_an_axis_is_two_where_heads_are_too_few() -> None:
    found = plan('mesh gpus(dp = 2, tp = 6)\nsplit model["h.0"] by heads into tp\nsplit model by ffn into tp')
    assert found.meshes[0].axes == (("dp", 2), ("tp_outer", 2), ("tp_inner", 3))
    assert [(d.name, d.size) for d in found.divided] == [("tp", 6)]
    assert cuts(found, "h.0.q") == ["tp_outer=2 heads", "tp_inner=3 heads_per_group"]
    assert cuts(found, "h.0.k") == ["tp_outer=2 heads"]
    assert cuts(found, "h.0.scores") == ["tp_inner=3 heads_per_group"]
    assert cuts(found, "h.1.mlp") == ["tp_outer=2 ffn", "tp_inner=3 ffn"]


def test_what_divides_heads_is_cut_as_before() -> None:
    found = plan('mesh gpus(tp = 3)\nsplit model["h.1"] by heads into tp')
    assert (found.meshes[0].axes, found.divided) == ((("tp", 3),), ())
    assert (cuts(found, "h.1.q"), cuts(found, "h.1.scores")) == (["tp=3 heads"], [])


def test_heads_and_devices_may_have_a_common_divisor_alone() -> None:
    """Two heads of keys on three devices: each device has both, and one of three queries for each."""
    found = plan('mesh gpus(tp = 3)\nsplit model["h.0"] by heads into tp')
    assert (found.meshes[0].axes, found.divided) == ((("tp", 3),), ())
    assert (cuts(found, "h.0.q"), cuts(found, "h.0.k")) == (["tp=3 heads_per_group"], [])


def test_other_axes_may_have_cut_heads_already() -> None:
    found = plan('mesh gpus(a = 2, tp = 3)\nsplit model["h.0"] by heads into a, tp')
    assert cuts(found, "h.0.q") == ["a=2 heads", "tp=3 heads_per_group"]
    assert (cuts(found, "h.0.k"), found.divided) == (["a=2 heads"], ())


def test_repeating_it_adds_nothing_and_selections_see_one_index() -> None:
    text = 'mesh gpus(tp = 6)\nsplit model["h.0"] by heads into tp\n'
    assert plan(text + text.splitlines()[1]).operators == plan(text).operators
    rest = plan(f"{text}split model[tp = none] by batch into m = 2")
    assert (cuts(rest, "h.0.k"), cuts(rest, "h.1.k")) == (["tp_outer=2 heads"], ["m=2 batch"])


def test_where_possible_cuts_it_too() -> None:
    found = plan("mesh gpus(tp = 4)\nsplit model by heads into tp where possible\nsplit model by ffn into tp")
    assert [cuts(found, f"h.{n}.{op}") for n in (0, 1) for op in "qk"] == [[], [], [], []]
    found = plan('mesh gpus(tp = 6)\nsplit model["h.1"] by heads into tp where possible')
    assert cuts(found, "h.1.q") == ["tp_outer=3 heads", "tp_inner=2 heads_per_group"]


def test_slices_of_the_axis_are_slices_of_both() -> None:
    text = 'mesh gpus(pp = 2, tp = 6)\nsplit model["h.0"] by heads into tp\nassign model["h.0"] to gpus[pp = 0]\n'
    found = interpret_all(parse(Source("plan.ssp", text + 'assign model["h.1"] to gpus[pp = 1, tp = 4]\n')), graph())[0]
    places = {str(found.of(o.name).place) for o in found.graph.operators}
    assert places == {"gpus[pp = 0]", "gpus[pp = 1, tp_outer = 1, tp_inner = 1]"}


def test_state_lies_over_both() -> None:
    text = 'mesh gpus(tp = 6)\nsplit model["h.0"] by heads into tp\nsplit model.optimizer by row into tp'
    assert [shard.axes for shard in plan(text).state.shards] == [("tp_outer", "tp_inner")]


def test_unequal_parts_stay_one_index_over_both() -> None:
    sizes = 5, 3, 1, 1, 1, 1
    found = plan(
        'mesh gpus(tp = 6)\nsplit model["h.0"] by heads into tp\nsplit model by ffn into tp = [5, 3, 1, 1, 1, 1]'
    )
    (index,) = found.of("op_7").indices
    assert (index.name, index.inner, index.digit.sizes) == ("tp_outer", ("tp_inner",), sizes)


def test_what_neither_divides_is_said_with_both() -> None:
    (axis,) = mistakes('mesh gpus(tp = 4)\nsplit model["h.0"] by heads into tp')
    assert "inside of it is `heads_per_group` = 3" in render(axis)
    assert "choose a divisor of 6: tp = 6, 3 or 2" in render(axis)
    (time,) = mistakes('mesh gpus(dp = 1)\nsplit model["h.0"] by heads into c = 6')
    assert "choose a divisor of 2: c = 2" in render(time)
    lines = ['split model["h.0"] by heads into c = 2', 'split model["h.0"] by heads_per_group into c_2 = 3']
    assert all(f"`{line}`" in render(time) for line in lines)
    assert cuts(plan("\n".join(["mesh gpus(dp = 1)", *lines])), "h.0.q") == ["c=2 heads", "c_2=3 heads_per_group"]


def test_parts_on_a_mesh_without_the_axis_are_in_time() -> None:
    text = 'mesh a(tp = 6)\nmesh b(pp = 1)\nsplit model["h.0"] by heads into tp\nassign model["h.1"] to a\n'
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("plan.ssp", text + 'assign model["h.0"] to b\n')), graph())
    assert [d.code for d in caught.value.diagnostics] == ["E0203"]


def test_an_axis_is_divided_in_one_way(golden: Callable[[Path, str], None]) -> None:
    found = mistakes("mesh gpus(tp = 6)\nsplit model by heads into tp")
    golden(ERRORS / "E0294.err", "\n".join(map(render, found)) + "\n")
    followed = (
        'mesh gpus(a = 2, b = 3)\nsplit model["h.0"] by heads into a\nsplit model["h.0"] by heads_per_group into b\n'
        'split model["h.1"] by heads into b\nsplit model["h.1"] by heads_per_group into a'
    )
    assert cuts(plan(followed), "h.1.q") == ["b=3 heads", "a=2 heads_per_group"]
