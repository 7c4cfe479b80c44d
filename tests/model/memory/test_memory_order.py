"""Which operators ask how their operands lie in memory, what the graph says of it, and what leaves the graph."""

import pytest
import torch
from torch import nn

from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.memory.memory_order import order_of
from ssdsl.model.memory.storage import strides_in
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.layout.cut import contiguous


class Net(nn.Module):
    def __init__(self, middle: str) -> None:
        super().__init__()
        self.up, self.middle = nn.Linear(3, 8), middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.middle)(self.up(x)).square().mean()

    def pairs(self, y: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (2, 4)).mT.contiguous()))

    def turned(self, y: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (4, 2)).transpose(1, 2)))

    def view(self, y: torch.Tensor) -> torch.Tensor:
        return y[:, 1:].as_strided((4, 6), (48, 8), 0)

    def copied(self, y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[:, :2] += 1
        return y


def graph_of(middle: str) -> Graph:
    return capture(Model("net", Net(middle), ({"x": torch.randn(4, 6, 3)},), {"x": ("batch", "seq", "feature")}))


def test_the_copy_that_a_model_makes_is_an_order() -> None:
    graph = graph_of("pairs")
    (found,) = (o for o in graph.operators if o.kind == "view_as_complex")
    assert found.orders == ((0, 1, 2, 3),)
    assert "clone" not in {o.kind for o in graph.operators}


def test_a_view_that_needs_no_copy_keeps_its_order() -> None:
    (found,) = (o for o in graph_of("turned").operators if o.kind == "view_as_complex")
    assert found.orders == ((0, 2, 1, 3),)


def test_strides_into_a_view_are_strides_into_what_is_behind_it() -> None:
    graph = graph_of("view")
    (found,) = (o for o in graph.operators if o.kind == "as_strided")
    (around,) = (o for o in graph.operators if o.kind == "as_strided_scatter")
    assert found.inputs[0].value == around.outputs[0].value
    assert graph.values[found.inputs[0].value].shape == (4, 6, 8)
    assert found.orders == ((0, 1, 2),)


def test_what_rewrites_leave_unread_is_not_in_the_graph() -> None:
    graph = graph_of("copied")
    read = {i.value for o in graph.operators for i in o.inputs} | {graph.loss}
    assert all(not read.isdisjoint(r.value for r in o.outputs) for o in graph.operators)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_tensor_is_laid_out_once(order: tuple[int, ...]) -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    for given in (x, x.permute(2, 0, 1).contiguous().permute(1, 2, 0), x.repeat(1, 1, 2)[..., :4], x[1:]):
        laid = contiguous(given, order)
        assert torch.equal(laid, given)
        assert laid.stride() == strides_in(order, tuple(given.shape))
        assert contiguous(laid, order) is laid
        assert given.shape[0] == 1 or order_of(laid) == order
