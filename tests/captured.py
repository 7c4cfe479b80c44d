"""Models and their graphs, loaded and captured once for all tests of a process."""

from functools import cache
from pathlib import Path

from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.trace import capture

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
