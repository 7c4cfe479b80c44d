"""What autograd saves is measured once for each distinct call, however many layers a model has."""

import doctest
import importlib

import pytest
import torch
from torch import nn

from ssdsl.model.ops.measured import measure
from ssdsl.model.saved import saved
from ssdsl.model.source import Model
from ssdsl.model.storage import storages
from ssdsl.model.trace import capture


class Stack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().sum()


def measurements(layers: int) -> tuple[int, int]:
    """How often torch ran for a model, and how often it was asked."""
    graph = capture(Model("stack", Stack(layers), ({"x": torch.zeros(4, 6)},), {"x": ("batch", "feature")}))
    places = storages(graph)
    measure.cache_clear()
    for operator in graph.operators:
        saved(operator, graph, places)
    found = measure.cache_info()
    return found.misses, found.hits + found.misses


def test_equal_layers_are_measured_once() -> None:
    few, many = measurements(2), measurements(12)
    assert few[0] == many[0] and few[1] < many[1]


@pytest.mark.parametrize("name", ["saved_tensors", "signature", "ops.measured"])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"ssdsl.model.{name}"))
    assert found.attempted and not found.failed
