"""Programs to prove and to break."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan
from ssdsl.ir.program import Program
from tests.captured import graph_of as graph_of
from tests.ir.conftest import program_of as program_of  # the programs of tests/ir/programs

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (ROOT / "examples", ROOT / "tests" / "verify" / "plans", Path(__file__).parent / "plans")


@cache
def _program(plan: str, model: str, params: tuple[tuple[str, int], ...]) -> Program:
    path = next(p for folder in FOLDERS if (p := folder / f"{plan}.ssp").exists())
    return compile_plan(path, graph_of(model), dict(params)).program


@pytest.fixture
def compiled() -> Callable[..., Program]:
    """A plan's program for a model."""

    def of(plan: str, model: str = "gpt:tiny", **params: int) -> Program:
        return _program(plan, model, tuple(params.items()))

    return of
