"""`type_operators`: the tables of docs/design.md, cell by cell, on a product of two matrices."""

from pathlib import Path

import pytest

from ssdsl.ir.function import CALL, Kernel
from ssdsl.ir.layout import PARTIAL, REPLICATE, Shard
from ssdsl.ir.value import Axis, Time, Type
from ssdsl.lower.operators.type_operators import type_operators
from ssdsl.lower.stages import TypedGraph, TypedOperand
from ssdsl.model.dims.window import Band, Sliding, Window
from ssdsl.model.graph import DimWindow, Graph
from ssdsl.plan.regions import Digit, Regions
from ssdsl.record import replace
from tests.lower.by_hand import after, graph_of, plan_of

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
PRODUCT = """
    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
    loss[] = sum y[batch, out]
"""
BIASED = """
    input x[batch, in]
    weight w[in, out]
    weight b[out]
    y[batch, out] = addmm b[out]+ x[batch, in] w[in, out]
    loss[] = sum y[batch, out]
"""
SIZES = {"batch": 8, "in": 4, "out": 12}


def table(*head: str) -> list[list[str]]:
    """The rows of the table of the page with these words in its head."""
    lines = DESIGN.read_text("utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("|") and all(word in line for word in head))
    rows = lines[first + 2 :]
    end = next(n for n, line in enumerate(rows) if not line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:end]]


def typed(text: str, splits: dict[str, str], operator: str = "y") -> dict[str, TypedOperand]:
    """The typed operands and results of an operator on a mesh with the axis `a` of two devices."""
    lowering = after(type_operators, plan_of(graph_of(text, **SIZES), {"a": 2}, splits))
    return named(lowering, operator)


def named(lowering: TypedGraph, operator: str) -> dict[str, TypedOperand]:
    op, found = lowering.graph.by_name[operator], lowering.typed[operator]
    return dict(zip(op.values, (*found.reads, *found.results), strict=True))


HAS, LACKS, NO_SPLIT = "the tensor has it", "it has not", "the operator is not split"
CASES = {  # of outputs and of inputs: the split, and the tensors of which the cell speaks
    ("output", HAS): [({"batch": "a 2"}, "y"), ({"out": "a 2"}, "y")],
    ("output", LACKS): [({"in": "a 2"}, "y")],
    ("output", NO_SPLIT): [({}, "y"), ({"batch": "other 2"}, "y")],
    ("input", HAS): [({"batch": "a 2"}, "x"), ({"in": "a 2"}, "x"), ({"in": "a 2"}, "w"), ({"out": "a 2"}, "w")],
    ("input", LACKS): [({"batch": "a 2"}, "w"), ({"out": "a 2"}, "x")],
    ("input", NO_SPLIT): [({}, "x"), ({}, "w"), ({"in": "other 2"}, "w")],
}
CELLS = [
    (row[0], column, row[number])
    for row in table("the tensor has `ℓ`", "it has not")
    for number, column in enumerate((HAS, LACKS, NO_SPLIT), 1)
]


def along_axis(type_: Type) -> str:
    (place,) = type_.layout.places
    return {REPLICATE: "replicated", PARTIAL: "partial sum"}.get(place, "sharded")  # type: ignore[arg-type]


def in_turn(type_: Type) -> str:
    if any(name == "a" for name, _ in type_.time):
        return "sharded"
    return "partial sum" if "a" in type_.owed else "replicated"


def test_the_table_has_four_rows_of_three_cells() -> None:
    assert len(CELLS) == 12 and {cell for _, _, cell in CELLS} == {"sharded", "partial sum", "replicated"}


@pytest.mark.parametrize(("row", "column", "cell"), CELLS)
def test_each_cell_of_the_table_of_layouts_holds_on_devices_and_in_time(row: str, column: str, cell: str) -> None:
    what = "output" if "output" in row else "input"
    for splits, tensor in CASES[what, column]:
        for axis, say in (("a", along_axis), ("b", in_turn)):
            lowering = after(type_operators, plan_of(graph_of(PRODUCT, **SIZES), {axis: 2}, splits))
            found = named(lowering, "y")[tensor]
            assert say(found.gradient if row.startswith("gradient") else found.type) == cell, (splits, tensor)


def test_a_part_is_the_digit_of_its_dimension_and_inner_indices_have_smaller_strides() -> None:
    found = typed(PRODUCT, {"batch": "a 2, m 2"})["x"]
    assert found.type.layout.places == (Shard(0, Digit(2, 4)),) and found.type.time == (("m", Shard(0, Digit(2, 2))),)
    assert [str(size) for size in found.sizes] == ["2", "4"]


def test_a_factor_of_an_axis_is_cut_by_its_own_digit() -> None:
    text = PRODUCT.replace("out", "qkv·heads")
    lowering = after(type_operators, plan_of(graph_of(text, **SIZES, qkv=3, heads=4), {"a": 2}, {"heads": "a 2"}))
    found = named(lowering, "y")
    assert found["w"].type.layout.places == (Shard(2, Digit(2, 2)),) and [s.known for s in found["y"].sizes] == [8, 6]


def test_a_bias_is_added_by_the_first_device_alone_and_its_gradient_is_whole_on_each() -> None:
    lowering = after(type_operators, plan_of(graph_of(BIASED, **SIZES), {"a": 2}, {"in": "a 2"}))
    bias = named(lowering, "y")["b"]
    assert lowering.typed["y"].first == (Axis("a"),)
    assert (along_axis(bias.type), along_axis(bias.gradient)) == ("replicated", "replicated")


def test_in_time_the_first_part_adds_a_bias_and_its_gradient_is_a_sum() -> None:
    lowering = after(type_operators, plan_of(graph_of(BIASED, **SIZES), {"b": 2}, {"in": "a 2"}))
    bias = named(lowering, "y")["b"]
    assert lowering.typed["y"].first == (Time("a"),)
    assert (in_turn(bias.type), in_turn(bias.gradient)) == ("replicated", "partial sum")


def test_no_part_is_the_first_where_a_bias_is_split_or_nothing_is_summed() -> None:
    for splits in ({"batch": "a 2"}, {"out": "a 2"}):
        assert after(type_operators, plan_of(graph_of(BIASED, **SIZES), {"a": 2}, splits)).typed["y"].first == ()


def test_equal_calls_that_are_cut_alike_are_typed_once_and_others_apart() -> None:
    text = """
        input x[batch, in]
        weight v[in, out]
        weight w[in, out]
        y[batch, out] = mm x[batch, in] v[in, out]
        z[batch, out] = mm x[batch, in] w[in, out]
        s[batch, out] = add y[batch, out] z[batch, out]
        loss[] = sum s[batch, out]
    """
    graph = graph_of(text, **SIZES)
    alike = after(type_operators, plan_of(graph, {"a": 2}, {"batch": "a 2"})).typed
    apart = after(type_operators, plan_of(graph, {"a": 2}, {"batch": "a 2", "z.batch": ""})).typed
    assert alike["y"] is alike["z"] and apart["y"].number != apart["z"].number


# -- four kinds of dimension -------------------------------------------------------------------------------------------


def windowed(shape: Window) -> Graph:
    """The product, in which a result of `out` reads a window of the positions of `in`."""
    graph = graph_of(PRODUCT, **SIZES | {"in": 12})
    product, *rest = graph.operators
    dims = [replace(d, window=DimWindow(2, shape)) if d.name == "in" else d for d in product.dims]
    return replace(graph, operators=(replace(product, dims=tuple(dims)), *rest))


@pytest.mark.parametrize(
    ("kind", "shape", "runs"),
    [
        ("windowed", Sliding(12, stride=1, before=1, taps=3), (((0, 7),), ((5, 12),))),  # one position on each side
        ("prefix", Band.prefix(12), (((0, 6),), ((0, 12),))),  # what lies in front, and itself
    ],
)
def test_a_part_reads_the_region_that_the_kind_of_its_dimension_says(kind: str, shape: Window, runs: Regions) -> None:
    assert kind in [row[0] for row in table("kind", "part *i* of the results needs")]
    lowering = after(type_operators, plan_of(windowed(shape), {"a": 2}, {"y.out": "a 2"}))
    read = named(lowering, "y")["x"]
    assert read.type.layout.places == read.gradient.layout.places == (Shard(1, Digit(2, at=runs)),)


def test_a_plain_call_computes_a_part_and_a_kernel_one_that_must_be_merged() -> None:
    assert "maximum, with its place" in [row[0] for row in table("merge", "of")]
    text = PRODUCT.replace("loss[] = sum y[batch, out]", "z[batch] = amax y[batch, out*] 1\n    loss[] = sum z[batch]")
    lowering = after(type_operators, plan_of(graph_of(text, **SIZES), {"a": 2}, {"out": "a 2"}))
    assert lowering.typed["y"].kernel == CALL
    assert lowering.typed["z"].kernel == Kernel("amax_parts", ("a",))
    assert along_axis(named(lowering, "z")["z"].type) == "replicated"  # the kernel has merged the parts
