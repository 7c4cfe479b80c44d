"""What the tests of the IR share: the plans of `programs/`, compiled for the models beside them."""

from collections.abc import Callable
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest

from ssdsl.ir.program import Program
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all

HERE = Path(__file__).parent


@cache
def graph_of(model: str) -> Graph:
    with chdir(HERE):
        return capture(load(f"models.py:{model}"))


@cache
def _program(name: str) -> Program:
    path = HERE / "programs" / f"{name}.ssp"
    source = read_source(path)
    model = source.text.partition("\n")[0].removeprefix("# model: ")
    plan, _ = interpret_all(parse(source), graph_of(model), {}, path.parent)
    return lower(plan)


@pytest.fixture(scope="session")
def program_of() -> Callable[[str], Program]:
    """The program of a plan by its name."""
    return _program
