"""`precision OPS to bf16`: what operators read is cast, and so is what others read of them."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.model.alter.recast import recast
from ssdsl.model.alter.run_graph import GraphModel
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.record import as_dict, replace
from ssdsl.run.verify.single_device import Trained, reference
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
PLAN = "mesh gpus(dp = 2)\nsplit model by batch into dp\n{}\nassign model to gpus\n"


class Mlp(nn.Module):
    """Two products with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).float().square().mean()


class Rotated(Mlp):
    """It has complex numbers, which are not made of bfloat16 ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        return self.down(torch.view_as_real(torch.view_as_complex(y.view(-1, 8, 2))).flatten(1)).square().mean()


class Sparse(Mlp):
    """Its table gets sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 8, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.table((x > 0).long()).sum(1))).square().mean()


def model_of(module: type[nn.Module]) -> Model:
    torch.manual_seed(0)
    return Model("mlp", module(), ({"x": torch.randn(8, 8)},), {"x": ("batch", "in")})


def compiled(more: str, graph: Graph | None = None) -> Compiled:
    graph = captured(GPT)[1] if graph is None else graph
    return compile_source(Source("plan.ssp", PLAN.format(more)), graph, {}, Path())


def trained(model: Model, graph: Graph | None = None) -> Trained:
    if graph is not None:
        model = GraphModel(**as_dict(model), graph=graph)
    return reference(model, Training(steps=2, optimizer="sgd", lr=0.1))


def types(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The types of the results of each kind of operator."""
    return {o.kind: tuple(graph.values[r.value].dtype for r in o.outputs) for o in graph.operators}


def test_products_in_half_precision_are_those_of_autocast() -> None:
    model = model_of(Mlp)
    graph = capture(model)
    types = {o.name: "bfloat16" for o in graph.computing if o.kind == "linear"}
    ours, autocast = trained(model, recast(graph, types)), trained(replace(model, autocast=torch.bfloat16))
    assert ours.tensors().keys() == autocast.tensors().keys()
    differ = [name for name, tensor in autocast.tensors().items() if not torch.equal(tensor, ours.tensors()[name])]
    assert differ == []
    assert ours.losses != trained(model).losses


def test_operators_in_half_precision_are_those_of_the_module_in_it() -> None:
    model = model_of(Mlp)
    graph = capture(model)
    half = model.module.to(torch.bfloat16)(model.batches[0]["x"].bfloat16())
    model = model_of(Mlp)
    kinds = ("linear", "relu")
    assert trained(model, recast(graph, {o.name: "bfloat16" for o in graph.computing if o.kind in kinds})).losses[
        0
    ] == (half.item())
    whole = recast(graph, {o.name: "bfloat16" for o in graph.computing})
    assert whole.values[whole.loss].dtype == "float32", "the results of a step keep their types"


def test_a_tensor_travels_in_the_narrower_type() -> None:
    """A cast is where the tensor is made if the new type is narrower, and else where it is read."""
    graph = compiled('precision model["h.1"] to bf16').plan.graph
    casts = [o for o in graph.operators if o.kind == "_to_copy"]
    made = Counter(graph.values[o.outputs[0].value].dtype for o in casts)
    down = {o.path for o in casts if graph.values[o.inputs[0].value].origin == "operator"}
    assert made["float32"] == 1 and {p.partition("h.")[2][:1] for p in down} == {"0", ""}
    assert types(graph)["layer_norm"] == ("float32",), "the last norm is outside"


def test_what_only_moves_elements_passes_on_the_type() -> None:
    graph = compiled("precision model.addmm to bf16").plan.graph
    views = [o for o in graph.operators if o.kind == "reshape" and "attn.c_attn" in o.path]
    assert [graph.values[o.outputs[0].value].dtype for o in views[1::2]] == ["bfloat16"] * 2


def test_weights_and_their_gradients_stay_in_the_type_of_the_model() -> None:
    found = compiled("precision model to bf16")
    assert {p.dtype for p in found.program.params} == {"float32"}


def test_an_evaluation_computes_in_the_same_types() -> None:
    model, _ = captured(GPT)
    training = compiled('precision model["h.*"] to bf16')
    graph = compile_evaluation(training, model).program.graph
    own = [o for o in training.plan.graph.operators if o.kind == "_to_copy"]
    kinds: list[Operator] = [o for o in graph.operators if o.kind == "_to_copy"]
    assert len(kinds) == len(own)


def test_a_selection_less_another_needs_no_parentheses() -> None:
    text = "precision model-model.layer_norm   to bf16\n"
    assert format_script(parse(Source("a.ssp", text))) == "precision model - model.layer_norm to bf16\n"
    assert types(compiled(text).plan.graph)["layer_norm"] == ("float32",)


@pytest.mark.parametrize("more", ["let precision = model\nprecision precision to bf16", "let bf16 = model"])
def test_the_words_may_be_names(more: str) -> None:
    assert compiled(more)


def test_an_operator_that_does_not_take_the_type() -> None:
    graph = capture(model_of(Rotated))
    with pytest.raises(PlanError) as caught:
        compiled("precision model to bf16", graph)
    text = render(caught.value.diagnostics[0])
    assert "E0238" in text and "`view_as_complex` of `.` does not compute in bf16" in text
    line = text.split("leave it out: `")[1].rstrip("`\n")
    assert compiled(line, graph)


def test_a_sparse_gradient_is_not_cast() -> None:
    graph = capture(model_of(Sparse))
    with pytest.raises(PlanError, match=r"E0238: .*sparse"):
        compiled("precision model.embedding to bf16", graph)
    assert compiled("precision model - model.embedding to bf16", graph)


@pytest.mark.parametrize(
    "more", ["precision model to {}", "precision model to bf16\nprecision model.layer_norm to fp32"]
)
def test_the_help_of_a_mistake_is_a_plan(more: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(more.replace("{}", "fp8"))
    (mistake,) = caught.value.diagnostics
    (first, *_) = re.findall("`([^`]*)`", mistake.text(mistake.help))
    assert compiled(more.replace("{}", first) if "{}" in more else more.replace("precision model to bf16", first))


def test_it_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = replace(captured(GPT)[1])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError) as caught:
        compiled("precision model.mul to bf16", graph)
    assert caught.value.diagnostics[0].code == "E0239"
