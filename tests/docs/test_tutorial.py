"""The picture of docs/tutorial.md is the step that the page says; its commands are run by test_console.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.simulate.simulate import simulate
from tests.captured import graph_of
from tests.docs.console import ROOT, File, session_of
from tests.docs.timeline import picture

PAGE = ROOT / "docs" / "tutorial.md"
PARAMS = {"S": 4, "D": 4, "T": 4, "M": 8}


@pytest.mark.slow  # test_console.py shows the numbers of this step
def test_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]) -> None:
    for step in session_of(PAGE.read_text("utf-8")):
        if isinstance(step, File):
            (tmp_path / step.name).write_text(step.text)
    monkeypatch.chdir(tmp_path)
    compiled = compile_plan(Path("vocab.ssp"), graph_of(f"{tmp_path}/gpt.py:large"), PARAMS)
    report = simulate(compiled.program, compiled.source, load_cluster("a100x1024"))
    title = "vocab.ssp for gpt.py:large on 64 A100: 4 stages, 8 micro-batches"
    golden(PAGE.with_suffix(".svg"), picture(report.timeline, title))
