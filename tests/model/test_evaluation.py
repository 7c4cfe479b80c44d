"""What is asked of a forward beside its loss: by key, attribute or position; and what is said where that fails."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.model import evaluation_errors as errors
from ssdsl.model.evaluation import capture_evaluation
from ssdsl.model.graph import Origin
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

ERRORS = Path(__file__).parent.parent / "errors"
Scores = namedtuple("Scores", "loss scores")
FORMS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "object": (lambda loss, y: SimpleNamespace(loss=loss, scores=y), "scores"),
    "dictionary": (lambda loss, y: {"loss": loss, "scores": y}, "scores"),
    "tuple": (lambda loss, y: (loss, y), "1"),
    "named tuple": (Scores, "scores"),
}


class Net(nn.Module):
    """In eval mode it returns more than its loss, in a form of choice."""

    def __init__(self, form: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.a, self.b, self.drop, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        y = self.b(self.norm(self.drop(self.a(x))))
        loss = y.square().mean()
        return loss if self.training else self.form(loss, y)


def _model(module: nn.Module) -> Model:
    return Model("net", module, ({"x": torch.randn(8, 4)},), {"x": ("batch", "feature")})


@pytest.mark.parametrize("form", FORMS)
def test_outputs_by_name(form: str) -> None:
    make, name = FORMS[form]
    model = _model(Net(make))
    graph = capture_evaluation(model, [name, name], capture(model))
    assert list(graph.outputs) == [name]
    assert graph.values[graph.outputs[name]].shape == (8, 4)
    assert graph.values[graph.loss].shape == ()


def test_the_graph_of_eval_mode() -> None:
    """No dropout, no update; running statistics are read, and are no constants. The module is left as it was."""
    model = _model(Net(FORMS["object"][0]))
    training = capture(model)
    graph = capture_evaluation(model, [], training)
    assert {"dropout"} <= {o.kind for o in training.operators} and training.of(Origin.SEED)
    assert not {"dropout", "key"} & {o.kind for o in graph.operators} and not graph.of(Origin.SEED)
    assert not graph.updates and not any(o.statistics for o in graph.operators)
    assert {"norm.running_mean", "norm.running_var"} <= {v.name for v in graph.of(Origin.BUFFER)}
    assert model.module.training and model.module.norm.training


class Apart(nn.Module):
    """In eval mode one operator reads the weights of both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.a(x)) if self.training else x @ (self.a.weight @ self.b.weight)
        return y.square().mean()


WHOLE = """
mesh gpus(dp = 2)

split model by batch into dp
assign model to gpus
"""
STAGES = """
mesh gpus(pp = 2)

assign model["a"] to gpus[pp = 0]
assign model - model["a"] to gpus[pp = 1]
"""


def _compiled(model: Model, text: str) -> Compiled:
    return compile_source(Source("plan.ssp", text), capture(model), {}, None)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).square().mean()


class Cache:
    """An object that only a model knows."""


class Hidden(nn.Module):
    """Returns tuples, and things that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.never = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        hidden, others = (x, y, y + x), {"length": 8, "cache": Cache(), "none": None, "rate": 0.5, "name": "net"}
        return {"loss": y.square().mean(), "hidden": hidden, "pair": [y], "never": self.never.weight, "others": others}


def _refused(module: nn.Module, *outputs: str) -> PlanError:
    model = _model(module)
    training = _compiled(model, STAGES if isinstance(module, Apart) else WHOLE)
    with pytest.raises(PlanError) as raised:
        compile_evaluation(training, model, outputs)
    return raised.value


def _told(module: nn.Module) -> PlanError:
    model = _model(module)
    return PlanError(*compile_evaluation(_compiled(model, WHOLE), model, None).warnings)


def _several(*refused: PlanError) -> PlanError:
    return PlanError(*(d for one in refused for d in one.diagnostics))


CASES: dict[str, Callable[[], PlanError]] = {
    "E0420": lambda: _several(_refused(Net(FORMS["object"][0]), "logits"), _refused(Hidden(), "hidden.3")),
    "E0422": lambda: _refused(Apart()),
    "E0423": lambda: PlanError(errors.EvaluationLeftOut(None, "model `net` returns no tensor, not a loss")),
    "E0424": lambda: _several(_refused(Hidden(), "others"), _refused(Hidden(), "others.length")),
    "E0425": lambda: _told(Hidden()),
}


@pytest.mark.parametrize("code", CASES)
def test_its_text(code: str, golden: Callable[[Path, str], None]) -> None:
    found: tuple[Diagnostic, ...] = CASES[code]().diagnostics
    assert {d.code for d in found} == {code}
    golden(ERRORS / f"{code}.err", "\n\n".join(map(render, found)) + "\n")


def test_each_has_a_case_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == set(CASES)
    assert all(REGISTRY[code].__doc__ for code in own)


def test_the_outputs_of_a_container() -> None:
    model = _model(Hidden())
    graph = capture_evaluation(model, ["pair", "hidden", "hidden.1"], capture(model))
    assert list(graph.outputs) == ["hidden.0", "hidden.1", "hidden.2", "pair.0"]
    assert [leaf.name for leaf in graph.returned] == list(graph.outputs)


class Classifier(nn.Module):
    """Returns its scores alone; its loss is a function of these and of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_a_tensor_that_is_no_loss_is_the_output_0() -> None:
    batch = {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}
    model = model_of(Classifier(), batch, loss=lambda scores, given: (scores - given["y"]).square().mean())
    graph = capture_evaluation(model, None, capture(model))
    assert list(graph.outputs) == ["0"] and graph.values[graph.outputs["0"]].shape == (8, 4)


def test_nothing_but_a_loss_is_returned() -> None:
    (found,) = _refused(Plain(), "scores").diagnostics
    assert "it returns its loss alone" in render(found)
