"""Each plan in `programs/` shows one behaviour of the lowering: its program is the golden beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.ir.program import Program
from ssdsl.ir.text.program import program_text
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source

PLANS = sorted((Path(__file__).parent / "programs").glob("*.ssp"))


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_program(path: Path, program_of: Callable[[str], Program], golden: Callable[[Path, str], None]) -> None:
    text = program_text(program_of(path.stem))
    assert not any(line.endswith(" ") for line in text.splitlines())
    golden(path.with_suffix(".program"), text)


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_plans_are_formatted(path: Path) -> None:
    source = read_source(path)
    assert format_script(parse(source), source) == source.text
