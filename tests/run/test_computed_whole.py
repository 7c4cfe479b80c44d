"""What needs all of a split dimension is computed whole, and what stands behind it is split again."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.fuzz.trial import try_plan
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.runtime.options import Training
from ssdsl.show.tables.check import whole_view
from ssdsl.show.view import as_json
from ssdsl.text.source import Source

MESH = "mesh gpus(dp = 2)\n"
SPACE_AND_TIME = MESH + "split model by batch into dp, m = 2\nassign model to gpus\n"
UNEQUAL = MESH.replace("2", "1") + "split model by batch into m = [3, 5]\nassign model to gpus\n"
Function = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    "max": lambda y: y - y.max(0).values,
    "amin of all": lambda y: y - y.amin(),
    "argmax": lambda y: y * y.argmax(0),
    "var": lambda y: y / (1 + y.var(0)),
    "std": lambda y: y - y.std(),
    "prod": lambda y: y * torch.sigmoid(y).prod(0),
    "cummax": lambda y: y.cummax(0).values,
    "sort": lambda y: y.sort(0).values,
    "topk": lambda y: y + y.topk(2, 0).values.sum(0),
    "logsumexp": lambda y: y - y.logsumexp(0),
    "median": lambda y: y - y.median(0).values,
    "softmax": lambda y: y.softmax(0),
    "slice": lambda y: y[:4],
}


class Between(nn.Module):
    """A function of the whole batch between two linears."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(6, 8), nn.Linear(8, 5), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.function(self.first(x))).square().mean()


@cache
def captured(name: str) -> tuple[Model, Graph]:
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 6)}
    model = Model(name, Between(FUNCTIONS[name]), (batch,), {"x": ("batch", "features")})
    return model, capture(model)


def planned(graph: Graph, text: str) -> Plan:
    return interpret_all(parse(Source("plan.ssp", text)), graph, {}, Path())[0]


@pytest.mark.thinned(9)
@pytest.mark.parametrize("text", [SPACE_AND_TIME, UNEQUAL], ids=["space and time", "unequal"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal(name: str, text: str) -> None:
    outcome = try_plan(*captured(name), text, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["cummax", "sort", "softmax", "var"])
def test_what_follows_is_split(name: str) -> None:
    _, graph = captured(name)
    plan = planned(graph, SPACE_AND_TIME)
    first, second = (o for o in graph.operators if o.kind == "linear")
    cuts = [[(i.name, o.dims[i.dim].name) for i in plan.of(o.name).indices] for o in (first, second)]
    assert cuts == [[("dp", "batch"), ("m", "batch")]] * 2


def test_check_says_what_is_whole() -> None:
    plan = planned(captured("cummax")[1], SPACE_AND_TIME)
    rows = as_json(whole_view(lower(plan)))
    assert [(r["operator"], r["dimension"], r["index"], r["devices"]) for r in rows] == [
        (". cummax", "batch", "dp", 2),
        (". cummax", "batch", "m", 1),
    ]
    flops = {o.kind: o.flops for o in plan.graph.operators}
    assert rows[0]["share"] == pytest.approx(flops["cummax"] / sum(o.flops for o in plan.graph.operators))


def test_nothing_is_whole_where_everything_is_split() -> None:
    plan = planned(captured("cummax")[1], MESH + "split model.linear by batch into dp\nassign model to gpus\n")
    assert whole_view(lower(plan)).rows == ()
