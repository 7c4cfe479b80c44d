"""What a collective may overwrite: what rows say is what torch shows, and addends of products are not among it."""

import pytest
import torch
import torch.nn.functional as F

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.load.model import Model
from ssdsl.model.memory.observed import overwritable
from ssdsl.model.module_to_graph import capture
from tests.model.rule_cases import Probe, Results

INPUT = {"x": torch.zeros(())}


def products(p: Probe) -> Results:
    w = p.weight
    return [
        *(F.linear(w(4, 6), w(8, 6), w(8)), w(2, 4, 6) @ w(2, 6, 8), w(2, 1, 4, 6) @ w(2, 6, 8), w(4, 6) @ w(6)),
        *(torch.dot(w(4), w(4)), torch.vdot(w(4), w(4)), F.conv1d(w(2, 4, 6), w(8, 4, 3), padding=1)),
        torch.addmv(w(4), w(4, 6), w(6)),
        *(w(4, 6).exp(), w(4, 6).tanh()),
    ]


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    return capture(Model("products", Probe(products), (INPUT,), {"x": ()}))


def of_kind(graph: Graph, *kinds: str) -> list[Operator]:
    found = [o for o in graph.operators if o.kind in kinds and graph.values[o.outputs[0].value].differentiable]
    assert {o.kind for o in found} == set(kinds)
    return found


def test_rows_that_say_so_make_new_tensors(graph: Graph) -> None:
    fresh = [o for o in graph.operators if o.row.fresh]
    assert len(fresh) >= 8
    for operator in fresh:
        results, gradients = overwritable(operator)
        assert results == {o.value for o in operator.outputs}, operator.args
        assert gradients >= {i.value for i in operator.inputs if not i.once}, operator.args


def test_the_gradient_of_an_addend_is_that_of_the_result(graph: Graph) -> None:
    (operator,) = of_kind(graph, "addmv")
    _, *factors = (i.value for i in operator.inputs)
    assert overwritable(operator)[1] == set(factors)


def test_results_that_autograd_keeps_are_not_overwritten(graph: Graph) -> None:
    assert all(not overwritable(o)[0] for o in of_kind(graph, "exp", "tanh"))
