"""Each plan in `programs/` shows one behaviour of the lowering: its program is the golden beside it."""

from collections.abc import Callable
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest

from ssdsl.ir.text.program import program_text
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.trace import capture
from ssdsl.plan.interpret import interpret_all

HERE = Path(__file__).parent
PLANS = sorted((HERE / "programs").glob("*.ssp"))


@cache
def graph_of(model: str) -> Graph:
    with chdir(HERE):
        return capture(load(f"models.py:{model}"))


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_program(path: Path, golden: Callable[[Path, str], None]) -> None:
    source = read_source(path)
    model = source.text.partition("\n")[0].removeprefix("# model: ")
    plan, _ = interpret_all(parse(source), graph_of(model), {}, path.parent)
    text = program_text(lower(plan))
    assert not any(line.endswith(" ") for line in text.splitlines())
    golden(path.with_suffix(".program"), text)


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_plans_are_formatted(path: Path) -> None:
    source = read_source(path)
    assert format_script(parse(source), source) == source.text
