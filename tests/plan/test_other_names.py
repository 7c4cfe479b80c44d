"""One axis of a model under two names: a `split` by one of them says what it leaves out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

ERRORS = Path(__file__).parent.parent / "errors"
PLAN = "mesh gpus(sp = 2)\nsplit model by rows into sp\n{more}assign model to gpus\n"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.convs(x).square() + x * y).mean()


@pytest.fixture(scope="module")
def graph() -> Graph:
    axes = {"x": ("batch", "colour", "rows", "columns"), "y": ("batch", "colour", "lines", "columns")}
    return capture(Model("net", Net(), ({"x": torch.randn(2, 3, 8, 8), "y": torch.randn(2, 3, 8, 8)},), axes))


def warned(graph: Graph, more: str = "") -> tuple[Diagnostic, ...]:
    return interpret_all(parse(Source("plan.ssp", PLAN.format(more=more))), graph)[1]


def test_what_has_the_axis_under_another_name_is_said(graph: Graph, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / "E0349.err", "\n".join(map(render, warned(graph))) + "\n")
    assert not warned(graph, "split model by height into sp\n")


def test_the_first_input_names_an_axis_and_the_other_name_leads_to_it(graph: Graph) -> None:
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("plan.ssp", PLAN.format(more="").replace("rows", "lines"))), graph)
    (found,) = (d for d in caught.value.diagnostics if d.code == "E0204")
    assert "here it is `rows`" in render(found)


def test_another_word_for_a_dimension_is_a_guess(graph: Graph) -> None:
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("plan.ssp", PLAN.format(more="").replace("rows", "seq"))), graph)
    (found,) = (d for d in caught.value.diagnostics if d.code == "E0204")
    assert "here it may be `height`" in render(found)
