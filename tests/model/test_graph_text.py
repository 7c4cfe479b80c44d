"""The text of a graph says all of it: whatever is changed in a graph, but for lines of the model's code, shows."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from ssdsl.model.capture.overloads import constant_of
from ssdsl.model.dims.window import Band, Sliding
from ssdsl.model.graph import Dim, DimWindow, Graph, Operand, Operator, Origin, Ref, Stage, Value
from ssdsl.model.graph_text import graph_text
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import target
from ssdsl.record import field_names, replace
from ssdsl.runtime.program.returned import Leaf, Step

BADDBMM = target("aten::baddbmm", "self batch1 batch2 beta alpha")
LINEAR = Operator(
    name="fc",
    kind="linear",
    target="aten::addmm",
    path="h.0.fc",
    source="net.py:12",
    stage=Stage.COMPUTE,
    args=(target("aten::addmm", "self mat1 mat2"), Ref("h.0.fc.bias"), Ref("x"), Ref("h.0.fc.weight")),
    kwargs=(("beta", 1),),
    inputs=(
        Operand("h.0.fc.bias", ((2,),), once=True),
        Operand("x", ((0,), (1,))),
        Operand("h.0.fc.weight", ((1,), (2,))),
    ),
    outputs=(Operand("fc", ((0,), (2,))),),
    dims=(Dim("batch", 4, 0), Dim("in", 3, 7), Dim("out", 6, 2)),
    row=ROWS["aten::addmm"],
    flops=144,
)
COUNT = Operator(
    name="count",
    kind="count",
    target="own::count",
    path="",
    source="net.py:13",
    stage=Stage.DATA,
    args=(target("aten::sum.dim_IntList", "self dim keepdim"), [Ref("x")], (1, "rows"), None),
    kwargs=(),
    inputs=(Operand("x", ((0,), (1,))), Operand("x", ((0,), (1,)))),
    outputs=(Operand("counted", ((0,), ())),),
    dims=(
        Dim("batch", 4, 0, fixed="it is counted"),
        Dim("in.keys", 3, 7, combined=True, window=DimWindow(0, Band.prefix(3)), beside=0),
        Dim("in.keys", 3, 7),
    ),
    row=ROWS["aten::addmm"],
    orders=((1, 0),),
)
VALUES = (
    Value("x", Origin.INPUT, (4, 3), "float32", False, ((0,), (7,)), ((4,), (3,))),
    Value("h.0.fc.bias", Origin.WEIGHT, (6,), "float32", True, ((2,),), ((6,),)),
    Value("h.0.fc.weight", Origin.WEIGHT, (3, 6), "float32", True, ((7,), (2,)), ((3,), (6,))),
    Value("seen", Origin.BUFFER, (4, 1), "int64", False, ((0,), ()), ((4,), ())),
    Value("fc", Origin.OPERATOR, (4, 6), "float32", True, ((0,), (2,)), ((4,), (6,))),
    Value("counted", Origin.OPERATOR, (4, 1), "int64", False, ((0,), ()), ((4,), ())),
)
GRAPH = Graph(
    name="net",
    operators=(LINEAR, COUNT),
    values={v.name: v for v in VALUES},
    loss="fc",
    dim_names={0: "batch", 7: "in", 2: "in"},
    updates={"seen": "counted"},
    constants={"few": constant_of(torch.tensor([1.5, 2.0])), "many": constant_of(torch.arange(20))},
    axes={"x": ("batch", "in")},
    outputs={"logits": "fc"},
    returned=(Leaf((Step("dict", "logits"),)), Leaf((Step("dict", "more"), Step("tuple", 0)), "an int")),
)
TEXT = """\
graph of net
classes 0 batch, 7 in, 2 in#2

loss = %fc
output logits = %fc
returned dict logits
returned dict more, tuple 0: an int
update seen = %counted

input x : float32[batch 4, in 3] named (batch, in)
weight h.0.fc.bias : float32*[in#2 6]
weight h.0.fc.weight : float32*[in 3, in#2 6]
buffer seen : int64[batch 4, 1]
stored few = torch.float32[2] [1.5, 2.0]
stored many = torch.int64[20] sha256 f5c4cb24f4c9b43e

module h.0.fc
  %fc[batch, out] : float32* = linear aten::addmm(%h.0.fc.bias[out] once, %x[batch, in], %h.0.fc.weight[in, out], \
beta=1)
    over batch 4, in 3, out (in#2) 6; flops 144

module .
  %counted[batch, 1] : int64 = own::count by aten.sum.dim_IntList([%x], (1, 'rows'), None) [count]
    stage data; over batch 4 whole: it is counted, in.keys (in) 3 combined beside batch \
by Band(size=3, before=3, after=0) of batch, in.keys'2 (in) 3; reads %x[batch, in.keys], %x[batch, in.keys]; \
in memory ((1, 0),)
"""


def test_the_text() -> None:
    assert graph_text(GRAPH) == TEXT


OTHER: dict[type, dict[str, Any]] = {
    Graph: {
        "name": "other",
        "operators": (COUNT, LINEAR),
        "loss": "counted",
        "dim_names": {0: "batch", 7: "in", 2: "out"},
        "updates": {"seen": "x"},
        "constants": {"few": constant_of(torch.tensor([1.5, 2.0])), "many": constant_of(torch.arange(1, 21))},
        "axes": {"x": ("batch", "width")},
        "outputs": {},
        "addends": ("fc", "counted"),
        "inserted": frozenset({"count"}),
        "returned": (Leaf((Step("list", "logits"),)),),
        "values": GRAPH.values | {"more": replace(VALUES[0], name="more")},
    },
    Operator: {
        "name": "other",
        "kind": "other",
        "target": "aten::other",
        "path": "h.1.fc",
        "stage": Stage.CONSTANT,
        "args": (BADDBMM, Ref("h.0.fc.bias"), Ref("x"), Ref("h.0.fc.weight"), 1.0),
        "kwargs": (("beta", 1.0),),
        "inputs": (),
        "outputs": (Operand("fc", ((0,), ())),),
        "dims": (Dim("batch", 4, 0), Dim("in", 3, 7), Dim("out", 6, 2), Dim("more", 1, 0)),
        "flops": 7,
        "orders": ((0, 1),),
    },
    Dim: {
        "name": "other",
        "size": 5,
        "cls": 2,
        "fixed": "it is long",
        "combined": True,
        "window": DimWindow(0, Sliding(3, 1, 0, 2)),
        "beside": 0,
    },
    DimWindow: {"of": 2, "shape": Band.prefix(4)},
    Operand: {"value": "seen", "axes": ((), (0,)), "once": True},
    Value: {
        "name": "other",
        "origin": Origin.CONSTANT,
        "shape": (2, 2),
        "dtype": "int8",
        "differentiable": True,
        "factors": ((0,), (0,)),
        "sizes": ((4,), (4,)),
    },
}


def others(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The graph with one field of one thing in it changed, and which that is."""
    for name in compared(graph):
        yield f"Graph.{name}", replace(graph, **{name: OTHER[Graph][name]})
    for value in (v for v in VALUES if v.name in ("x", "fc")):
        for name, other in changes(value):
            yield f"{value.name}: {name}", replace(graph, values=graph.values | {value.name: other})
    for number, operator in enumerate(graph.operators):
        for name, other in operators(operator):
            row = tuple(other if n == number else o for n, o in enumerate(graph.operators))
            yield f"{operator.name}: {name}", replace(graph, operators=row)


def operators(operator: Operator) -> Iterator[tuple[str, Operator]]:
    yield from changes(operator)
    for field in ("inputs", "outputs", "dims"):
        parts = getattr(operator, field)
        for number, part in enumerate(parts):
            for name, other in changes(part):
                yield name, replace(operator, **{field: (*parts[:number], other, *parts[number + 1 :])})
    for dim in (d for d in operator.dims if d.window is not None):
        for name, window in changes(dim.window):
            row = tuple(replace(d, window=window) if d is dim else d for d in operator.dims)
            yield name, replace(operator, dims=row)


def changes(item: Any) -> Iterator[tuple[str, Any]]:
    """The item with each of its fields changed in turn; a field that is new here needs a value in `OTHER`."""
    for name in compared(item):
        if (type(item), name) != (Operator, "source"):
            other = replace(item, **{name: OTHER[type(item)][name]})
            if other != item:
                yield f"{type(item).__name__}.{name}", other


def compared(item: Any) -> tuple[str, ...]:
    """The fields that two equal items have in common."""
    if not is_dataclass(item):
        return field_names(item)
    return tuple(f.name for f in fields(item) if f.compare)


@pytest.mark.parametrize("other", [pytest.param(other, id=what) for what, other in others(GRAPH)])
def test_what_is_changed_shows(other: Graph) -> None:
    assert graph_text(other) != TEXT


def test_a_line_of_the_model_does_not_show() -> None:
    assert graph_text(replace(GRAPH, operators=(replace(LINEAR, source="net.py:99"), COUNT))) == TEXT
