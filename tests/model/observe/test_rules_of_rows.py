"""What rows say that a call saves is what torch shows: in its own sizes, in other ones, and with axes of size 1."""

from collections.abc import Iterator

import pytest
import torch

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.load.model import Model
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.observe.saved import _apart, _ones, saved_by
from ssdsl.model.ops.reader import Reader
from ssdsl.model.trace import capture
from tests.model.rule_cases import FAMILIES

BY_HAND = ("aten::ctc_loss", *(f"ssdsl::{name}" for name in ("routed_mm", "expert_mm", "dispatch", "combine")))


@pytest.mark.parametrize("family", FAMILIES)
def test_measured_is_declared(family: str) -> None:
    torch.manual_seed(0)
    graph = capture(Model(family, FAMILIES[family](), ({"x": torch.zeros(())},), {"x": ()}))
    found = [line for operator in graph.operators for line in differences(operator, graph)]
    assert not found, "\n".join(found)


def differences(operator: Operator, graph: Graph) -> Iterator[str]:
    rule = operator.row.saved
    if (
        rule is None
        or operator.row.name in BY_HAND
        or not any(graph.values[o.value].differentiable for o in operator.outputs)
    ):
        return
    ones = [_apart(operator, 1, dict.fromkeys(dims, 1)) for _, dims in _ones(operator)]
    for sizes in ([d.size for d in operator.dims], _apart(operator, 0, {}), _apart(operator, 1, {}), *ones):
        reader = Reader(operator, graph, sizes)
        declared = reader.named(rule) if isinstance(rule, str) else rule(reader)
        if declared is None:
            continue
        shapes = [reader.shape(o.axes) for o in (*operator.inputs, *operator.outputs)]
        names = [o.value for o in operator.inputs], [o.value for o in operator.outputs]
        where = f"{operator.args[0]}{operator.args[1:]} in {shapes}"
        try:
            measured = saved_by(operator, graph, sizes).at(shapes, *names)
        except ZeroDivisionError:  # a batch norm of one element
            continue
        if account(declared) != account(measured):
            yield f"{where}: declared {account(declared)}, measured {account(measured)}"


def account(saved: Saved) -> tuple[set[str], set[str], int]:
    return set(saved.inputs), set(saved.outputs), sum(e.size_bytes for e in saved.extras)
