"""Rules in place of calls: what they call, under which names."""

from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.calls import inline

aten = torch.ops.aten


def call_of(target: Any, *args: Any) -> tuple[CapturedCall, Capture]:
    """A call named `made` of tensors `x` and `y`, and a capture that has these."""
    tensors = {"x": Tensor((2, 3), "float32"), "y": Tensor((3,), "int64"), "made": Tensor((), "float32")}
    return CapturedCall("made", "made", target, args, {}, "path", "file:1", ("made",)), Capture(tensors=tensors)


def test_values_are_named_after_the_call_and_their_operators() -> None:
    def rule(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x.sum(0)
        return total * y / 2

    call, capture = call_of(aten.mul.Tensor, Ref("x"), Ref("y"))
    calls = inline(rule, call, capture)
    assert [(c.name, c.target.name(), c.args) for c in calls] == [
        ("made_sum", "aten::sum.dim_IntList", (Ref("x"), (0,))),
        ("made_mul", "aten::mul.Tensor", (Ref("made_sum"), Ref("y"))),
        ("made", "aten::div.Tensor", (Ref("made_mul"), 2)),
    ]
    assert all((c.path, c.source) == ("path", "file:1") for c in calls)
    assert capture.tensors["made_mul"] == Tensor((3,), "float32") == capture.tensors["made"]


def test_overloads_are_called_with_the_arguments_that_are_written() -> None:
    call, capture = call_of(aten.sum.default, Ref("x"))
    (made,) = inline(lambda x: aten.sum.dim_IntList(x, (0,), False), call, capture)
    assert made.args == (Ref("x"), (0,), False)


def test_a_new_tensor_is_on_the_device_that_the_rule_says() -> None:
    call, capture = call_of(aten.sum.default, Ref("x"))
    cpu = torch.device("cpu")
    first, _ = inline(lambda x: aten.zeros.default((3,), device=cpu) + x, call, capture)
    assert first.kwargs == {"device": cpu}


def test_a_rule_for_other_calls() -> None:
    call, capture = call_of(aten.sum.default, Ref("x"))
    assert inline(lambda x: NotImplemented, call, capture) == [call]


def test_the_second_value_of_a_name_has_a_number() -> None:
    call, capture = call_of(aten.sum.default, Ref("x"))
    names = [c.name for _ in range(2) for c in inline(lambda x: (x + 1) * (x + 2), call, capture)]
    assert names == ["made_add", "made_add_1", "made", "made_add_2", "made_add_3", "made"]
