"""Models and their graphs, loaded and captured once for all tests of a process."""

from functools import cache
from pathlib import Path

import torch

from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.trace import capture
from tests.model.rule_cases import FAMILIES, PRODUCTS

MODELS = Path(__file__).parent / "models"


@cache
def captured(spec: str, meta: bool | None = None) -> tuple[Model, Graph]:
    """A model by its name as on the command line, and its graph; a user's file without a folder is one of tests/models.

    The model has no numbers if `meta`, or by default if it is large.
    """
    model = load(str(MODELS / spec) if ".py:" in spec and "/" not in spec else spec, meta=meta)
    return model, capture(model)


def graph_of(spec: str, meta: bool | None = None) -> Graph:
    """The graph alone."""
    return captured(spec, meta)[1]


@cache
def captured_family(family: str) -> tuple[torch.nn.Module, Graph]:
    """The module of a family of calls, the same in all tests, and its graph."""
    torch.manual_seed(0)
    module = (FAMILIES | PRODUCTS)[family]()
    return module, capture(Model(family, module, ({"x": torch.zeros(())},), {"x": ()}))
