"""Each plan in `programs/` shows one behaviour of the lowering: its program is the golden beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.ir.program import Program
from ssdsl.ir.text.program import program_text
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.text.source import Source

EVALUATED = """
mesh gpus(dp = 2)

split model by batch into dp
split model["head"].weights by row into dp
assign model to gpus
"""
PLANS = sorted((Path(__file__).parent / "programs").glob("*.ssp"))


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_program(path: Path, program_of: Callable[[str], Program], golden: Callable[[Path, str], None]) -> None:
    text = program_text(program_of(path.stem))
    assert not any(line.endswith(" ") for line in text.splitlines())
    golden(path.with_suffix(".program"), text)


def test_an_evaluation(golden: Callable[[Path, str], None], tmp_path: Path) -> None:
    """Dropout is gone, running statistics are read, results are kept; the loss has addends."""
    model = load(f"{PLANS[0].parent.parent.parent / 'models' / 'scored.py'}:net")
    training = compile_source(Source("plan.ssp", EVALUATED), capture(model), {}, None)
    program = compile_evaluation(training, replace(model, name="scored"), ["logits", "total"]).program
    golden(PLANS[0].parent / "evaluation.program", program_text(program))


def test_plans_are_formatted() -> None:
    sources = map(read_source, PLANS)
    assert [s.name for s in sources if format_script(parse(s), s) != s.text] == []
