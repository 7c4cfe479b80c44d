"""What torch shows of calls is found when they are captured, once for each signature."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.model.graph import Dim
from ssdsl.model.load.model import Model
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.module_to_graph import capture
from ssdsl.model.observe import observe, saved
from ssdsl.model.observe.saved import SavedMeasurement, saved_by
from ssdsl.model.ops.reader import Reader
from ssdsl.model.signatures import signature
from tests.captured import captured_family, graph_of
from tests.model.rule_cases import CASES


class Stack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().sum()


def runs(layers: int, monkeypatch: pytest.MonkeyPatch, known: observe.Known) -> int:
    """How often torch runs a call of a model to see what it saves, if so much is known."""
    asked: list[object] = []

    def counted(*given: Any) -> SavedMeasurement:
        asked.append(given)
        return kept(*given)

    kept = saved._kept
    with monkeypatch.context() as patch:
        patch.setattr(saved, "_kept", counted)
        patch.setattr(observe, "_KNOWN", known)
        patch.setattr(saved, "_KNOWN", {})
        capture(Model("stack", Stack(layers), ({"x": torch.zeros(4, 6)},), {"x": ("batch", "feature")}))
    return len(asked)


def test_equal_layers_are_observed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few = runs(2, monkeypatch, {})
    assert few and runs(12, monkeypatch, {}) == few


def test_equal_calls_of_two_models_are_observed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known: observe.Known = {}
    assert runs(2, monkeypatch, known) and not runs(3, monkeypatch, known)


@pytest.mark.thinned(14)
@pytest.mark.parametrize("family", CASES)
def test_operators_get_one_number_where_their_calls_are_equal(family: str) -> None:
    _, graph = captured_family(family)
    pairs = {(o.signature, signature(o, graph)) for o in graph.operators}
    assert len(pairs) == len({number for number, _ in pairs}) == len({call for _, call in pairs})


@pytest.mark.thinned(26)
@pytest.mark.parametrize("family", CASES)
def test_parts_are_known_without_torch(family: str) -> None:
    """What was observed answers for parts as torch does when it is asked for their sizes."""
    _, graph = captured_family(family)
    calls = {graph.signatures[o.name]: o for o in graph.operators}.values()  # equal calls keep the same
    for operator in (o for o in calls if o.observed is not None and o.observed.parts is not None):
        asked = set()
        for cut in itertools.product((1, 2, None), repeat=min(4, len(operator.dims))):
            pairs = itertools.zip_longest(operator.dims, cut, fillvalue=1)
            sizes = [1 if n is None and not d.fixed else _part(d, n or 1) for d, n in pairs]
            shapes = [Reader(operator, graph, sizes).shape(o.axes) for o in (*operator.inputs, *operator.outputs)]
            if str(shapes) in asked:
                continue
            asked.add(str(shapes))
            if (found := operator.observed.parts.at(shapes)) is None or any(d.window for d in operator.dims):
                continue
            try:
                truth = saved_by(operator, graph, sizes).at(shapes, operator)
            except (RuntimeError, IndexError, ZeroDivisionError):  # a size that the operator does not take
                continue
            where = f"{operator.args[0]}{operator.args[1:]} in {shapes}"
            assert _bytes(found.at(shapes, operator)) == _bytes(truth), where


def _part(dim: Dim, parts: int) -> int:
    return dim.size if dim.fixed or dim.size % parts else dim.size // parts


def _bytes(kept: Saved) -> object:
    return set(kept.inputs), set(kept.outputs), sum(e.size_bytes for e in kept.extras)


@pytest.mark.parametrize("model", ["gpt:tiny", "swin:tiny", "mixtral:tiny"])
def test_a_plan_of_a_captured_model_needs_no_torch(model: str) -> None:
    """What parts save is known of each call that saves anything, attention among them."""
    seen = [(o.name, o.observed) for o in graph_of(model).operators if o.observed is not None]
    assert [name for name, found in seen if found.whole is not None and found.parts is None] == []
