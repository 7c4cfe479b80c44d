"""Copying a program call by call gives what torch gives, which traces it again; and where torch has to."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssdsl.model.capture import decompose
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from tests.model.parts import outside, run_graph

Compute = Callable[["Net", torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """Layers, a buffer, and what a function makes of them."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.compute = compute
        self.fc = nn.Linear(6, 6)
        self.bilinear = nn.Bilinear(6, 6, 2)
        self.norm = nn.BatchNorm1d(6)
        self.tracking = nn.InstanceNorm1d(2, track_running_stats=True)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


def view_of_a_sum(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    y += x
    return y.view(-1).mul_(2).sum()


def changed_twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    z = y.relu_()
    y.mul_(3)
    return (y + z).square().sum()


def a_dead_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    square = y.view(2, 2, 6).square()
    return (y.sub_(1) * square.flatten(0, 1)).sum()


def counts(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count.add_(1)
    before = net.count * 1
    net.count.mul_(2)
    return (net.norm(net.fc(x)) * before * net.count).sum()


def copies(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count.copy_(x.mean(0))
    return (net.fc(x) * net.count).sum()


def casts(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = F.gelu(net.fc(x)) @ x.mT
    return y.float().square().mean()


def a_view_before(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    view = y.view(-1)
    y.add_(1)
    return view.square().sum()


def a_column(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    y[:, 0] = 0
    return y.square().sum()


def a_buffers_element(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count[0].add_(1)
    return (net.fc(x) * net.count).sum()


def of_another_type(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x).bfloat16()
    y.add_(x)
    return y.float().sum()


COPIED: dict[str, Compute] = {
    "views": lambda net, x: net.fc(x).reshape(2, 2, 6).unflatten(2, (2, 3)).flatten(1).narrow(1, 0, 6).mT.sum(),
    "equal calls": lambda net, x: (net.fc(x.reshape(2, 12).view(4, 6)).reshape(2, 12) * x.reshape(2, 12)).sum(),
    "parts": lambda net, x: torch.stack([*net.fc(x).chunk(3, 1), *x.tensor_split(3, 1)]).square().sum(),
    "differences": lambda net, x: torch.diff(net.fc(x), prepend=x[:, :1]).square().mean(),
    "a product inside": lambda net, x: net.bilinear(net.fc(x), x).square().sum(),
    "types": lambda net, x: (net.fc(x).to(torch.float64).to(torch.float64) * x.double().contiguous()).float().sum(),
    "no dropout": lambda net, x: F.dropout(net.fc(x), 0.0).sum() + F.dropout(net.fc(x), 0.3, training=False).mean(),
    "where": lambda net, x: net.fc(x).masked_fill_(x > 0, 0).clamp_(-1, 1).sum(),
    "statistics": lambda net, x: net.norm(net.norm(net.fc(x))).square().sum(),
    **{f.__name__: f for f in (view_of_a_sum, changed_twice, a_dead_view, counts, copies, casts)},
}
TRACED: dict[str, Compute] = {
    "composed of changes": lambda net, x: F.cosine_similarity(net.fc(x), x, dim=1).sum(),
    "tracked": lambda net, x: net.tracking(net.fc(x)[None].reshape(2, 2, 6)).square().sum(),
    **{f.__name__: f for f in (a_view_before, a_column, a_buffers_element, of_another_type)},
}


def refused(program: object) -> None:
    raise decompose._TraceAll


def of(compute: Compute) -> tuple[Graph, Net]:
    net = Net(compute)
    return capture(Model("net", net, ({"x": torch.randn(4, 6)},), {"x": ("batch", "width")})), net


def calls_of(graph: Graph) -> Counter[tuple[object, ...]]:
    """The calls with the shapes that they read and make."""
    shapes = {name: (value.shape, value.dtype, value.differentiable) for name, value in graph.values.items()}
    return Counter(
        (o.target, tuple(shapes[i.value] for i in o.inputs), tuple(shapes[i.value] for i in o.outputs), o.path)
        for o in graph.operators
    )


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", [*COPIED, *TRACED])
def test_a_copied_program_is_the_traced_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = (COPIED | TRACED)[case]
    traces: list[object] = []
    trace = torch.export.ExportedProgram.run_decompositions
    with monkeypatch.context() as context:
        context.setattr(torch.export.ExportedProgram, "run_decompositions", lambda *a: traces.append(a) or trace(*a))
        graph, net = of(compute)
    assert bool(traces) == (case in TRACED)
    batch = {"x": torch.randn(4, 6)}
    values = run_graph(graph, outside(graph, net, batch))
    torch.testing.assert_close(values[graph.loss], net(**batch))
    if traces:  # then torch has traced it
        return
    monkeypatch.setattr(decompose, "_Copy", refused)
    whole, _ = of(compute)
    assert calls_of(graph) <= calls_of(whole)  # torch makes a view once more where its base was changed
    assert graph.updates.keys() == whole.updates.keys()
