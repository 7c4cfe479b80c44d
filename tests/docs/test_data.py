"""docs/data.md: its data set trains the model of the zoo."""

import re
from pathlib import Path

import pytest

from ssdsl.model.load import load
from ssdsl.run.data import check_data

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text("utf-8")


def test_its_function_gives_batches_of_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "def counts" in block)
    (tmp_path / "counting.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert check_data("counting.py:counts", load("gpt")).endswith("counting.py:counts")
