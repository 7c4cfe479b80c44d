"""Models given in Python: where the loss is, axes by convention, modules on the meta device and functions."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ssdsl
import ssdsl.model.load.unmaterialised as deferred
from bench.fuzz.trial import try_plan
from bench.models.plans import PLANS
from ssdsl.model.graph import Graph
from ssdsl.model.load.batch import axes_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

ERRORS = Path(__file__).parent.parent.parent / "errors"
X, Y = torch.randint(32, (8, 6)), torch.randint(32, (8, 6))


class Net(nn.Module):
    """Most of torch's modules that have weights; returns its logits and, where it can, its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.norm = nn.Embedding(32, 16), nn.LSTM(16, 16, batch_first=True), nn.BatchNorm1d(16)
        self.attend, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        h = self.rnn(self.embed(x))[0]
        h = h + self.attend(h, h, h, need_weights=False)[0]
        logits = self.head(self.norm(h.transpose(1, 2)).transpose(1, 2))
        return logits, None if y is None else F.cross_entropy(logits.flatten(0, 1), y.flatten())


def trained(model: Model, plan: str = "data") -> Graph:
    graph = capture(model)
    outcome = try_plan(model, graph, PLANS[plan], Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text
    return graph


# -- the loss ----------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.make = nn.Linear(4, 3), make

    def forward(self, x: torch.Tensor) -> Any:
        out = self.fc(x)
        return self.make(out, out.square().mean())


class Outputs:
    def __init__(self, loss: Any) -> None:
        self.loss, self.other = loss, torch.zeros(())


FOUND: dict[str, tuple[Callable[..., Any], Any]] = {
    "itself": (lambda out, loss: loss, None),
    "an attribute": (lambda out, loss: Outputs(loss), None),
    "in a dictionary": (lambda out, loss: {"loss": loss, "other": loss * 2}, None),
    "the only number": (lambda out, loss: (out, loss, torch.tensor(3), None), None),
    "the only number of a dictionary": (lambda out, loss: {"logits": out, "cost": loss}, None),
    "by name": (lambda out, loss: {"loss": loss * 2, "cost": loss}, "cost"),
    "by attribute": (lambda out, loss: Outputs(loss * 2), lambda outputs, batch: outputs.loss / 2),
    "by position": (lambda out, loss: (loss * 2, loss), -1),
    "by a function": (lambda out, loss: out, lambda out, batch: (out.square() * batch["x"].new_ones(())).mean()),
}


@pytest.mark.parametrize("case", FOUND)
def test_where_the_loss_is(case: str) -> None:
    make, where = FOUND[case]
    model = ssdsl.model_of(Returns(make), torch.randn(8, 4), loss=where)
    trained(model)
    expected = model.module.fc(model.batches[0]["x"]).square().mean()
    assert torch.equal(model.compute(model.batches[0]), expected)


def test_what_forward_does_not_take_is_for_the_loss() -> None:
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    batch = torch.randn(8, 4), torch.randn(8, 2)
    model = ssdsl.model_of(body, batch, loss=lambda out, batch: F.mse_loss(out, batch["target"]))
    graph = trained(model, "1f1b")
    assert model.axes == {"input": ("batch", "input.1"), "target": ("batch", "target.1")}
    assert {"input.1", "target.1", "ffn"} <= set(graph.dim_names.values())


@pytest.mark.parametrize(
    ("make", "where", "said"),
    [
        (lambda out, loss: (loss, loss), None, "2 results, 2 of them single numbers"),
        (lambda out, loss: {"a": out}, None, "1 result, no single number"),
        (lambda out, loss: {"a": out}, "cost", "results called a, without 'cost'"),
        (lambda out, loss: (out, loss), 2, "2 results, without 2"),
        (lambda out, loss: loss, "cost", "a tensor, without 'cost'"),
        (lambda out, loss: Outputs(None), None, "does the batch have `labels`"),
    ],
)
def test_no_loss(make: Any, where: Any, said: str) -> None:
    with pytest.raises(PlanError, match="E0333") as caught:
        capture(ssdsl.model_of(Returns(make), torch.randn(8, 4), loss=where))
    assert said in str(caught.value)


def test_a_loss_function_that_fails_is_the_users() -> None:
    with pytest.raises(PlanError, match=r"E0340: .* KeyError: 'labels'"):
        capture(ssdsl.model_of(Returns(FOUND["itself"][0]), torch.randn(8, 4), loss=lambda out, b: b["labels"].sum()))


# -- axes --------------------------------------------------------------------------------------------------------------


def sizes(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def test_axes_by_convention() -> None:
    tokens = sizes(input_ids=(8, 16), attention_mask=(8, 16), labels=(8, 16))
    assert set(axes_of(nn.Linear(1, 1), tokens).values()) == {("batch", "seq")}
    assert axes_of(nn.Linear(1, 1), sizes(pixel_values=(8, 3, 4, 4), labels=(8,))) == {
        "pixel_values": ("batch", "channel", "height", "width"),
        "labels": ("batch",),
    }
    odd = axes_of(nn.Linear(1, 1), sizes(input_ids=(8, 16), position_ids=(1, 16), attention_mask=(8, 1, 16, 16)))
    assert odd["position_ids"] == ("position_ids.0", "seq")
    assert odd["attention_mask"] == tuple(f"attention_mask.{i}" for i in range(4))


def test_axes_of_other_modules() -> None:
    net = nn.Linear(1, 1)
    assert axes_of(net, sizes(x=(8, 4), scale=())) == {"x": ("batch", "x.1"), "scale": ()}
    assert axes_of(net, sizes(x=(8, 4), y=(3,))) == {"x": ("x.0", "x.1"), "y": ("y.0",)}
    assert axes_of(net, sizes(x=(8, 4), y=(8, 5)), {"y": ("rows", "y")}) == {"x": ("batch", "x.1"), "y": ("rows", "y")}


def test_operators_know_better_words_than_a_place() -> None:
    graph = trained(ssdsl.model_of(Net(), (X, Y)), "tensor")
    assert {"batch", "seq", "hidden"} <= set(graph.dim_names.values())
    assert "y.1" not in graph.dim_names.values()


def test_what_is_named_is_checked() -> None:
    with pytest.raises(PlanError, match="E0311"):
        ssdsl.model_of(Net(), (X, Y), {"x": ("batch",)})
    with pytest.raises(PlanError, match="E0311"):
        ssdsl.model_of(Net(), (X, Y), {"z": ("batch", "seq")})
    named = ssdsl.model_of(Net(), (X, Y)).axes
    assert ssdsl.model_of(Net(), (X, Y), named).axes == named
    with pytest.raises(PlanError, match="E0310"):
        ssdsl.model_of(Net(), {"x": X, "z": Y})
    with pytest.raises(PlanError, match=r"E0309: the model is `Returns`, which needs an argument `make`"):
        ssdsl.model_of(Returns, (X, Y))


def test_a_class_without_arguments_is_a_function_that_makes_the_module() -> None:
    model = ssdsl.model_of(Net, (X, Y))
    assert model.name == "Net" and model.recipes is not None


# -- modules without numbers -------------------------------------------------------------------------------------------


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(deferred, "LARGE", 64)
    yield


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("plan", ["data", pytest.param("tensor", marks=pytest.mark.slow), "zero3"])
def test_a_module_on_meta_is_initialised_by_its_ranks(plan: str) -> None:
    with torch.device("meta"):
        net = Net()
    model = ssdsl.model_of(net, (X, Y))
    assert model.is_meta and model.can_run and net.head.weight.is_meta
    made = model.with_numbers().module
    assert made.head.weight is made.embed.weight
    assert 0.9 < float(made.embed.weight.std()) < 1.1 and float(made.norm.running_var.sum()) == 16
    assert float(made.rnn.weight_hh_l0.abs().max()) <= 0.25
    trained(model, plan)


@pytest.mark.usefixtures("everything_is_large")
def test_a_function_makes_what_it_makes_with_numbers() -> None:
    with deferred.initial_draws(5):
        expected = Net().state_dict()
    model = ssdsl.model_of(lambda: Net(), (X, Y), seed=5)
    made = model.with_numbers().module.state_dict()
    assert model.is_meta and all(torch.equal(made[name], tensor) for name, tensor in expected.items())
    trained(model)


class Outer(nn.Module):
    """A model that initialises the modules in it, as those of transformers and others do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 3.0)
        if module is self:
            nn.init.constant_(self.scale, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x)) * self.scale).square().mean()


class Inits(Outer):
    _init_weights = None  # type: ignore[assignment]

    def init_weights(self, factor: float = 0.5) -> None:
        for weight in self.parameters():
            nn.init.constant_(weight, factor)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def test_the_initialiser_of_the_model_around() -> None:
    batch = torch.randn(8, 16)
    outer = ssdsl.model_of(on_meta(Outer), batch).with_numbers().module
    assert float(outer.first.weight.mean()) == 3.0 and float(outer.scale.mean()) == 2.0
    inits = ssdsl.model_of(on_meta(Inits), batch).with_numbers().module
    assert {float(p.mean()) for p in inits.parameters()} == {0.5}
    partly = on_meta(Outer)
    partly.first = nn.Linear(16, 16)
    kept = ssdsl.model_of(partly, batch).with_numbers().module
    assert torch.equal(kept.first.weight, partly.first.weight) and float(kept.second.weight.mean()) == 3.0


def test_transformers_on_meta() -> None:
    library = pytest.importorskip("transformers")
    config = library.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    module = on_meta(lambda: library.LlamaForCausalLM(config))
    model = ssdsl.model_of(module, {"input_ids": X, "labels": X})
    assert model.axes == {"input_ids": ("batch", "seq"), "labels": ("batch", "seq")}
    made = model.with_numbers().module
    assert 0.015 < float(made.model.layers[0].mlp.up_proj.weight.std()) < 0.025
    plain = library.LlamaForCausalLM(config)
    assert torch.equal(made.model.rotary_emb.inv_freq, plain.model.rotary_emb.inv_freq)
    trained(model, "1f1b")


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("mask", torch.ones(16, 16).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (self.weight * self.mask)).square().mean()


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.ramp = nn.Linear(16, 16), torch.arange(16.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x) * self.ramp).square().mean()


def test_what_nothing_makes_is_named(golden: Callable[[Path, str], None]) -> None:
    texts = []
    for case, make in {"weights": Bare, "an attribute": Loose}.items():
        with pytest.raises(PlanError) as caught:
            ssdsl.model_of(on_meta(make), torch.randn(8, 16))
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / "E0371.err", "\n".join(texts))
    trained(ssdsl.model_of(lambda: Bare(), torch.randn(8, 16)))


def test_weights_that_a_checkpoint_brings() -> None:
    module = on_meta(Bare)
    with pytest.raises(PlanError, match="E0371: buffer `mask`"):
        ssdsl.model_of(module, torch.randn(8, 16), load_later=True)
    module.mask = torch.ones(16, 16).tril()
    made = ssdsl.model_of(module, torch.randn(8, 16), load_later=True).with_numbers().module
    assert made.weight.isnan().all() and float(made.mask.sum()) == 136


@pytest.mark.usefixtures("everything_is_large")
def test_attributes_that_a_forward_reads_have_numbers() -> None:
    class Ramp(Loose):
        def __init__(self) -> None:
            super().__init__()
            self.ramp = torch.arange(256.0).view(16, 16).sum(0)

    model = ssdsl.model_of(lambda: Ramp(), torch.randn(8, 16))
    assert torch.equal(model.module.ramp, torch.arange(256.0).view(16, 16).sum(0))
    trained(model)
