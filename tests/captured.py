"""Models and their graphs, loaded and captured once for all tests of a run.

A process of a run finds the graphs that another one has captured in a folder of the run.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from ssdsl.model.graph import Graph
from ssdsl.model.graph_file import NotData, read_graph, write_graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from tests.model.rule_cases import FAMILIES, PRODUCTS

MODELS = Path(__file__).parent / "models"


@cache
def captured(spec: str, meta: bool | None = None) -> tuple[Model, Graph]:
    """A model by its name as on the command line, and its graph; a user's file without a folder is one of tests/models.

    The model has no numbers if `meta`, or by default if it is large.
    """
    path = str(MODELS / spec) if ".py:" in spec and "/" not in spec else spec
    model = load(path, meta=meta)
    return model, once(f"{path} {model.is_meta}", lambda: capture(model))


def graph_of(spec: str, meta: bool | None = None) -> Graph:
    """The graph alone."""
    return captured(spec, meta)[1]


@cache
def captured_family(family: str) -> tuple[torch.nn.Module, Graph]:
    """The module of a family of calls, the same in all tests, and its graph."""
    torch.manual_seed(0)
    module = (FAMILIES | PRODUCTS)[family]()
    model = Model(family, module, ({"x": torch.zeros(())},), {"x": ()})
    return module, once(f"family {family}", lambda: capture(model))


def once(name: str, made: Callable[[], Graph]) -> Graph:
    """The graph of this name that a process of the run has captured, or else the one that is `made` now."""
    if (folder := os.environ.get("SSDSL_TEST_GRAPHS")) is None:  # there is no other process
        return made()
    path = Path(folder, hashlib.sha256(name.encode()).hexdigest())
    if path.exists():
        return read_graph(path)[0]
    graph = made()
    try:
        data = write_graph(graph, {})
    except NotData:
        return graph
    path.parent.mkdir(exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")
    own.write_bytes(data)
    if read_graph(own)[0] == graph:
        own.replace(path)
    return graph
