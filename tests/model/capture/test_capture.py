"""Capture: module paths, inlined regions, tensors changed in place, tied weights; and what cannot be captured."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from ssdsl.model.capture.errors import GENERATOR, CaptureFailed
from ssdsl.model.capture.preserve import patched
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.checks.side_effects import bounded
from ssdsl.model.graph import Graph, Origin, Stage
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.paths import match_paths
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.discover import operators
from tests.model.parts import outside, run_graph

ERRORS = Path(__file__).parent.parent.parent / "errors"
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


class Net(nn.Module):
    """A linear layer and what a function makes of the layer, its bias and the input."""

    def __init__(self, compute: Callable[["Net", torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.compute = compute
        self.fc = nn.Linear(4, 4)
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.average = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self, x)


def graph_of(compute: Callable[[Net, torch.Tensor], Any], training: bool = True) -> tuple[Graph, Net]:
    module = Net(compute).train(training)
    return capture(Model("net", module, ({"x": torch.ones(2, 4)},), {"x": ("batch", "width")})), module


def assert_same_loss(graph: Graph, module: Net) -> None:
    batch = {"x": torch.randn(2, 4)}
    values = run_graph(graph, outside(graph, module, batch))
    loss = module(**batch)
    torch.testing.assert_close(values[graph.loss], loss)
    weights = {n: w for n, w in module.named_parameters() if n in values}
    ours = torch.autograd.grad(values[graph.loss], [values[n] for n in weights], materialize_grads=True)
    theirs = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
    torch.testing.assert_close(ours, theirs)


def test_calls_of_a_module_are_numbered() -> None:
    graph, _ = graph_of(lambda net, x: net.trunk(net.trunk(net.fc(net.trunk(x)))).sum())
    paths = ["trunk.0", "trunk.1", "fc", "trunk#1.0", "trunk#1.1", "trunk#2.0", "trunk#2.1"]
    assert list(dict.fromkeys(o.path for o in graph.operators if o.path)) == paths
    of_path = {p: frozenset(o.name for o in graph.operators if o.path == p) for p in paths}
    third = of_path["trunk#2.0"] | of_path["trunk#2.1"]
    assert match_paths(of_path, "trunk#2") == (third,)
    assert match_paths(of_path, "trunk#0") == (of_path["trunk.0"] | of_path["trunk.1"],)


def test_calls_inside_a_repeated_module_have_its_number() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner(x))  # type: ignore[no-any-return]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Twice()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x)).sum()  # type: ignore[no-any-return]

    graph = capture(Model("outer", Outer(), ({"x": torch.ones(2, 4)},), {"x": ("batch", "width")}))
    paths = [o.path for o in graph.operators if o.kind == "linear"]
    assert paths == ["block.inner", "block.inner#1", "block#1.inner#2", "block#1.inner#3"]


def test_every_operator_has_its_line_in_the_users_code() -> None:
    graph, _ = graph_of(lambda net, x: net.fc(x).sum())
    assert {o.source.split(":")[0] for o in graph.operators} == {"test_capture.py"}


def test_regions_without_gradient_are_inlined() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = net.fc(x).abs().amax()
            with torch.enable_grad():
                shift = net.fc(x).square() * scale
            scale = scale + net.trunk(x).amax()
        return (net.fc(x) / scale + shift).sum()

    assert_same_loss(*graph_of(compute))


def test_what_is_detached_has_no_gradient() -> None:
    graph, module = graph_of(lambda net, x: (net.fc(x) * net.trunk(x).detach() + x.detach()).sum())
    assert [o.kind for o in graph.operators].count("detach") == 1, "the input has no gradient to stop"
    assert_same_loss(graph, module)


def test_changes_in_place_become_values() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        y = net.fc(x)
        y += x
        y.mul_(2)
        y[:, 0] = 0.5
        y[:, 1:3].relu_()
        return y.sum()

    graph, module = graph_of(compute)
    assert {"add", "mul", "select_scatter", "slice_scatter", "relu"} <= {o.kind for o in graph.operators}
    assert_same_loss(graph, module)


def test_running_statistics_are_buffers_that_the_call_updates() -> None:
    graph, module = graph_of(lambda net, x: net.norm(x).square().sum())
    buffers = {v.name for v in graph.of(Origin.BUFFER)}
    assert buffers == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(graph.updates) == {"norm.num_batches_tracked"}
    batch = {"x": torch.randn(2, 4)}
    values = run_graph(graph, outside(graph, module, batch))
    module(**batch)
    torch.testing.assert_close(values["norm.running_mean"], module.norm.running_mean)
    torch.testing.assert_close(values[graph.updates["norm.num_batches_tracked"]], module.norm.num_batches_tracked)


def test_running_statistics_are_constants_in_eval_mode() -> None:
    graph, module = graph_of(lambda net, x: net.norm(x).square().sum(), training=False)
    assert not graph.of(Origin.BUFFER) and "norm.running_mean" in graph.constants
    (norm,) = (o for o in graph.operators if o.kind == "batch_norm")
    assert not any(d.fixed or d.combined for d in norm.dims)
    assert_same_loss(graph, module)


def test_random_operators_take_a_key_and_positions() -> None:
    graph, module = graph_of(lambda net, x: (F.dropout(net.fc(x), 0.1) + F.dropout(net.fc(x), 0.2)).sum())
    drops = [o for o in graph.operators if o.kind == "dropout"]
    assert [o.target for o in drops] == ["ssdsl::dropout"] * 2
    assert {d.name for o in drops for d in o.dims if not d.fixed} == {"batch", "fc.weight.0"}
    (_, key, *positions), (_, other, *same) = ([i.value for i in o.inputs] for o in drops)
    assert key != other and positions == same, "positions of the same axes are one value"
    stages = {o.kind: o.stage for o in graph.operators}
    assert (stages["key"], stages["positions"], stages["dropout"]) == (Stage.DATA, Stage.CONSTANT, Stage.COMPUTE)
    assert [v.shape for v in graph.of(Origin.SEED)] == [(2,)]
    check_capture(Model("drops", module, ({"x": torch.ones(2, 4)},), {"x": ("batch", "in")}), graph)


def test_axes_of_equal_size_keep_positions_of_their_own() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(net.fc(x), 0.1).sum() + F.dropout(net.trunk(x) @ net.fc.weight.T, 0.1).sum()

    graph, _ = graph_of(compute)
    positions = [o for o in graph.operators if o.kind == "positions"]
    axes = [graph.values[o.name].factors for o in positions]
    assert len(set(axes)) == len(axes)


def test_what_does_not_drop_draws_nothing() -> None:
    for p, training in ((0.0, True), (1.0, True), (0.5, False)):
        graph, _ = graph_of(lambda net, x, p=p, on=training: F.dropout(net.fc(x), p, on).sum() + net.fc(x).sum())
        assert not graph.of(Origin.SEED)


def test_draws_that_nothing_reads_are_counted_and_not_made() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return F.dropout(net.fc(x), 0.1).sum()

    graph, _ = graph_of(compute)
    assert [o.args[2] for o in graph.operators if o.kind == "key"] == [1]
    assert not any(o.kind == "rand" for o in graph.operators)


def test_tied_weights_are_one_value() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 4)
            self.out = nn.Linear(4, 8, bias=False)
            self.out.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.out(self.table(x)), x)

    graph = capture(Model("tied", Tied(), ({"x": torch.tensor([1, 2])},), {"x": ("batch",)}))
    assert [v.name for v in graph.of(Origin.WEIGHT)] == ["table.weight"]
    users = [o.kind for o in graph.operators if any(i.value == "table.weight" for i in o.inputs)]
    assert users == ["embedding", "linear"]
    assert [graph.dim_names[c] for (c,) in graph.values["table.weight"].factors] == ["vocab", "hidden"]


def test_gradients_scaled_by_the_frequency_of_words_need_the_whole_batch() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        return F.embedding(x.long().abs() % 4, net.fc.weight, scale_grad_by_freq=True).sum()

    graph, module = graph_of(compute)
    (table,) = (o for o in graph.operators if o.kind == "embedding")
    assert all(d.fixed for d in table.dims)
    assert_same_loss(graph, module)


def test_a_norm_that_averages_is_captured() -> None:
    """Its share of a batch is a number read from a buffer."""
    graph, module = graph_of(lambda net, x: net.average(net.fc(x)).square().sum())
    assert set(graph.updates) == {f"average.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
    assert_same_loss(graph, module)


AVERAGES: dict[str, Callable[[nn.Parameter, nn.Parameter], Any]] = {
    "interpolated": lambda k, q: k.lerp_(q, 0.25),
    "multiplied": lambda k, q: k.mul_(0.75).add_(q, alpha=0.25),
    "copied": lambda k, q: k.copy_(0.75 * k + 0.25 * q),
    "multiplied, as data": lambda k, q: k.data.mul_(0.75).add_(q.data, alpha=0.25),
    "copied, as data": lambda k, q: k.data.copy_(k.data * 0.75 + q.detach() * 0.25),
    "assigned, as data": lambda k, q: setattr(k, "data", k.data * 0.75 + q.data * 0.25),
    "changed and assigned": lambda k, q: setattr(k, "data", k.data.mul_(0.75).add_(q.data, alpha=0.25)),
    "a view": lambda k, q: [k[:2].lerp_(q[:2], 0.25), k[2:].lerp_(q[2:], 0.25)],  # traced by torch
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("average", AVERAGES)
def test_frozen_weights_that_average_trained_ones_are_captured(average: str) -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for k, q in zip(net.fc.parameters(), net.trunk[0].parameters(), strict=True):
                AVERAGES[average](k, q)
        return (net.trunk(x) - net.fc(x)).square().mean()

    module = Net(compute)
    module.fc.requires_grad_(False)
    model = Model("net", module, ({"x": torch.ones(2, 4)},), {"x": ("batch", "width")})
    graph = capture(model)
    assert set(graph.updates) == {"fc.weight", "fc.bias"}
    assert {graph.values[n].origin for n in graph.updates} == {Origin.BUFFER}
    assert check_capture(model, graph).what == " once: loss, 2 gradients, 2 frozen weights, 6 buffers"
    values = run_graph(graph, outside(graph, module, model.batches[0]))
    expected = 0.75 * module.fc.weight + 0.25 * module.trunk[0].weight
    torch.testing.assert_close(values[graph.updates["fc.weight"]], expected)


@pytest.mark.parametrize(
    "parts", [slice(None), slice(1, None)], ids=["whole", "in part"]
)  # the latter is traced by torch
def test_a_frozen_weight_with_two_names_is_changed_under_both(parts: slice) -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            net.fc.weight[parts].mul_(0.5)
            net.trunk[2].weight[parts].add_(1.0)
        return net.fc(net.trunk(x)).square().mean()

    module = Net(compute)
    module.trunk = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    module.fc.weight.requires_grad_(False)
    module.trunk[2].weight = module.fc.weight
    model = Model("net", module, ({"x": torch.ones(2, 4)},), {"x": ("batch", "width")})
    graph = capture(model)
    (name,) = graph.updates
    assert check_capture(model, graph).is_compared
    values = run_graph(graph, outside(graph, module, model.batches[0]))
    expected = module.fc.weight.clone()
    expected[parts] = 0.5 * expected[parts] + 1.0
    torch.testing.assert_close(values[graph.updates[name]], expected)


def test_data_that_shares_memory_with_a_trained_weight_is_refused() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        net.fc.weight.data = net.trunk[0].weight.data
        return (net.trunk(x) - net.fc(x)).square().mean()

    module = Net(compute)
    module.fc.requires_grad_(False)
    with pytest.raises(PlanError) as raised:
        capture(Model("net", module, ({"x": torch.ones(2, 4)},), {"x": ("batch", "width")}))
    (found,) = raised.value.diagnostics
    assert found.code == "E0343" and "whose memory it shares" in render(found)


def _normed(take: Callable[[torch.Tensor], torch.Tensor], trains: bool) -> Model:
    """A model whose teacher takes the statistics that its batch norm had before the step."""

    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for new, old in zip(net.fc.buffers(), net.trunk[0].buffers(), strict=True):
                new.copy_(take(old))
        return (net.trunk(x) - net.fc(x)).square().mean()

    module = Net(compute)
    module.trunk, module.fc = nn.Sequential(nn.BatchNorm1d(4)), nn.BatchNorm1d(4).train(trains)
    return Model("net", module, ({"x": torch.randn(8, 4)},), {"x": ("batch", "width")})


@pytest.mark.parametrize("take", [torch.clone, torch.Tensor.detach])
def test_a_copy_of_statistics_keeps_what_they_were_before_the_batch_norm(
    take: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = _normed(take, trains=False)
    graph = capture(model)
    assert {"fc.running_mean", "fc.running_var"} <= set(graph.updates)
    assert check_capture(model, graph).is_compared


def test_a_clone_of_statistics_may_be_read_after_the_batch_norm() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        old = net.norm.running_var.clone()
        return (old * net.norm(net.fc(x))).square().sum()

    model = Model("net", Net(compute), ({"x": torch.randn(8, 4)},), {"x": ("batch", "width")})
    assert check_capture(model, capture(model)).is_compared


def test_statistics_that_the_forward_and_a_batch_norm_change_are_refused() -> None:
    with pytest.raises(PlanError) as raised:
        capture(_normed(torch.clone, trains=True))
    (found,) = raised.value.diagnostics
    assert found.code == "E0330" and "gives a new value to `fc.running_mean`" in render(found)


def test_checks_of_the_arguments_of_a_distribution_are_left_out() -> None:
    known = Distribution._validate_args
    graph, module = graph_of(lambda net, x: -Normal(net.fc(x), net.trunk(x).exp()).log_prob(x).mean())
    assert Distribution._validate_args is known
    assert_same_loss(graph, module)


def test_checks_of_all_elements_are_left_out() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x.isfinite(), lambda: "numbers are wanted")
        return net.fc(x).sum()

    graph, module = graph_of(compute)
    assert_same_loss(graph, module)


@pytest.mark.parametrize(
    "compute",
    [
        lambda net, x: torch.func.vmap(net.trunk)(x).square().sum(),
        pytest.param(
            lambda net, x: torch.func.jvp(lambda x: net.fc(x).tanh(), (x,), (torch.ones_like(x),))[1].square().sum(),
            marks=pytest.mark.skipif(VERSION < (2, 13), reason="torch.export sees through `jvp` from 2.13 on"),
        ),
    ],
    ids=["vmap", "jvp"],
)
def test_functions_of_torch_func_are_traced_away(compute: Callable[[Net, torch.Tensor], Any]) -> None:
    assert_same_loss(*graph_of(compute))


@pytest.mark.parametrize(
    "count",
    [
        lambda numbers, each: torch.bincount(numbers, minlength=4),
        lambda numbers, each: numbers.bincount(each, minlength=4),
        lambda numbers, each: numbers.int().bincount(each.bfloat16(), 4),
        lambda numbers, each: numbers.bincount((each > 0).long(), 4),
    ],
    ids=["function", "method", "half precision", "whole weights"],
)
def test_counts_of_bounded_numbers(count: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    numbers, each = torch.tensor([3, 1, 1]), torch.tensor([0.5, -1.0, 2.0])
    known = count(numbers, each)
    with patched(torch, "bincount", bounded(torch.bincount)), patched(Tensor, "bincount", bounded(Tensor.bincount)):
        torch.testing.assert_close(count(numbers, each), known)  # of one type, too

    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        most, at = net.fc(x).topk(2, -1)
        counted = count(at.flatten(), most.detach().flatten())
        return (net.trunk(x).mean(0) * counted).sum()

    assert_same_loss(*graph_of(compute))


NOWHERE = """
for name in ("first", "second"):
    define = torch.library.custom_op(f"ssdsl_nowhere::{name}", mutates_args=(), schema="(Tensor x) -> Tensor")
    operator = define(lambda x: -x)
    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda ctx, g: -g)
"""
exec(NOWHERE, {"torch": torch, "__name__": "ssdsl_nowhere"})  # operators of a module that nobody can import
assert operators.count == 0  # where an operator counts its calls


def flow(loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The derivative of a loss by a weight, through which gradients flow."""
    (found,) = torch.autograd.grad(loss, weight, create_graph=True)
    return found


def finite(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x).sum()
    assert y.isfinite(), "a model of ours"
    return y


def positive(net: Net, x: torch.Tensor) -> torch.Tensor:
    if x.sum() < 0:
        raise ValueError("numbers above zero are wanted")
    return net.fc(x).sum()


def otherwise(net: Net, x: torch.Tensor) -> torch.Tensor:
    mask: Any = None if torch.compiler.is_compiling() else torch.ones_like(x)
    return net.fc(x)[mask.argmax()].sum()  # type: ignore[no-any-return]


WRONG: dict[str, dict[str, Callable[[Net, torch.Tensor], Any]]] = {
    "E0330": {
        "control flow": lambda net, x: net.fc(x).sum() if net.fc(x).sum() > 0 else net.fc(x).mean(),
        "a number read": lambda net, x: (net.fc(x) * x.amax().item()).sum(),
        "a number of float": lambda net, x: (y := net.fc(x).sum(), print(float(y)))[0],
        "a number printed": lambda net, x: (y := net.fc(x).sum(), print(f"{y:.3f}"))[0],
        "a shape": lambda net, x: net.fc(x)[x > 0].sum(),
        "counts": lambda net, x: (net.fc(x) * net.fc(x).argmax(1).bincount()).sum(),
        "a shape in a loss": lambda net, x: F.mse_loss(net.fc(x)[x[:, 0] > 0], x[x[:, 0] > 0]),
        "numpy": lambda net, x: net.fc(x).sum() * float(x.numpy().mean()),
        "a function of functions": lambda net, x: torch.cond(x.sum() > 0, net.fc, net.trunk, (x,)).sum(),
        "an assertion": finite,
        "a condition of an error": positive,
        "another way": otherwise,
        "a check": lambda net, x: torch.linalg.tensorinv(net.fc.weight, 1).sum() + x.sum(),
        "a check of arguments": lambda net, x: Normal(net.fc(x), 1.0, validate_args=True).log_prob(x).sum(),
        "a position in a buffer": lambda net, x: x[int(net.norm.num_batches_tracked)].sum() + net.norm(net.fc(x)).sum(),
        "a derivative of draws": lambda net, x: flow(F.dropout(net.fc(x)).sum(), net.fc.weight).square().sum(),
        "a derivative of a norm": lambda net, x: flow(net.norm(net.fc(x)).sum(), net.fc.weight).square().sum(),
    },
    "E0331": {
        "no rule": lambda net, x: torch.ops.ssdsl_nowhere.first(net.fc(x)).sum(),
        "two, one of them often": lambda net, x: torch.ops.ssdsl_nowhere.second(
            torch.ops.ssdsl_nowhere.first(net.fc(x)) + torch.ops.ssdsl_nowhere.first(x)
        ).sum(),
    },
    "E0367": {
        "the new mean": lambda net, x: net.norm(net.fc(x)).sum() + net.norm.running_mean.sum(),
        "a view": lambda net, x: (net.norm.running_var.detach() * net.norm(net.fc(x))).sum(),
    },
    "E0332": {
        "poisson": lambda net, x: (net.fc(x) + torch.poisson(x.abs())).sum(),
        "two": lambda net, x: (net.fc(x) * torch._standard_gamma(x.abs()) + torch.poisson(x.abs())).sum(),
    },
    "E0333": {
        "a tensor": lambda net, x: net.fc(x),
        "several": lambda net, x: (net.fc(x).sum(), net.fc(x).mean()),
        "a number": lambda net, x: 3.0,
        "nothing": lambda net, x: None,
        "no weight": lambda net, x: x.sum(),
        "detached": lambda net, x: net.fc(x).sum().detach(),
    },
}


def test_a_generator_of_its_own_is_refused() -> None:
    """Till torch 2.12 the export fails, with torch's words; later the generator is a constant of the program."""
    with pytest.raises(PlanError) as caught:
        graph_of(lambda net, x: (net.fc(x) + torch.randn(4, generator=torch.Generator())).sum())
    (found,) = caught.value.diagnostics
    assert isinstance(found, CaptureFailed) and found.change == GENERATOR


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(
    code: str, capfd: pytest.CaptureFixture[str], golden: Callable[[Path, str], None]
) -> None:
    texts = []
    for case, compute in WRONG[code].items():
        with pytest.raises(PlanError) as caught:
            graph_of(compute)
        assert {d.code for d in caught.value.diagnostics} == {code}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    assert capfd.readouterr() == ("", ""), "torch.export prints whole graphs"
    said = re.sub(r"(?<=test_capture\.py:)\d+(?=:)|(?m:^\d+(?= \|))", "123", "\n".join(texts))
    golden(ERRORS / f"{code}.err", re.sub(r"test_capture\.py:\d+(?!\d*:)", "test_capture.py:12", said))


class Complex(nn.Module):
    """Pairs that lie dense before they are seen as complex numbers: the call asks for it, whatever made them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(self.up(x).unflatten(-1, (2, 4)).transpose(-1, -2).contiguous())
        return torch.view_as_real(z * z).square().mean()


def test_what_asks_how_its_operands_lie_is_compared_as_it_runs() -> None:
    model = Model("complex", Complex(), ({"x": torch.randn(4, 8)},), {"x": ("batch", "in")})
    graph = capture(model)
    assert any(o.orders for o in graph.operators)
    check_capture(model, graph)
