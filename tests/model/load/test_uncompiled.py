"""A model that `torch.compile` has wrapped is captured as the module inside: with its names, its weights, and a
warning."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.model.load.from_file import check_model
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.uncompiled import uncompiled
from ssdsl.model.module_to_graph import capture
from ssdsl.text.render import render

ERRORS = Path(__file__).parent.parent.parent / "errors"


class Net(nn.Module):
    def __init__(self, *, compiled: bool) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.enter, self.body = nn.Linear(8, 8), torch.compile(body, backend="eager") if compiled else body
        self.again = self.body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.body(self.enter(x))).square().mean()


def nets() -> tuple[Net, nn.Module, nn.Module]:
    return Net(compiled=False), Net(compiled=True), torch.compile(Net(compiled=True), backend="eager")


def test_names_are_those_of_the_module_inside() -> None:
    plain, inner, outer = nets()
    for net in (inner, outer):
        before = list(net.state_dict())
        found, (warning,) = uncompiled(net, None)
        assert list(found.state_dict()) == list(plain.state_dict()) and list(net.state_dict()) == before
        assert any("_orig_mod" in name for name in before) and warning.code == "E0290"
        assert found.body is found.again
        own = {name.replace("_orig_mod.", ""): tensor for name, tensor in net.named_parameters()}
        assert all(tensor is own[name] for name, tensor in found.named_parameters())
    assert uncompiled(plain, None) == (plain, ())


@pytest.mark.parametrize("make", [lambda: nets()[1], lambda: nets()[2]])
def test_a_graph_has_these_names(make: Callable[[], nn.Module]) -> None:
    for given in (make(), make):  # a module, and a function that makes one
        model = model_of(given, {"x": torch.randn(4, 8)})
        graph = capture(model)
        assert {"body.0.weight", "enter.bias"} <= graph.values.keys()
        assert not any("_orig_mod" in o.path for o in graph.operators) and [r.code for r in model.remarks] == ["E0290"]


def test_a_module_that_is_compiled_in_place_is_told_too() -> None:
    net = Net(compiled=False)
    net.body.compile(backend="eager")
    found, (warning,) = uncompiled(net, None)
    assert found is net and warning.names == ("body",)


def test_the_warning(golden: Callable[[Path, str], None]) -> None:
    net = torch.compile(Net(compiled=True), backend="eager")
    model = check_model(None, "net.py:net", "net", (net, {"x": torch.randn(4, 8)}))
    golden(ERRORS / "E0290.err", "\n".join(map(render, model.remarks)) + "\n")
