"""`ssdsl.search`: what a script gets, and what it is told of numbers that are none."""

from pathlib import Path
from typing import Any

import pytest

import ssdsl
from ssdsl.text.diagnostic import PlanError


def test_a_report(tmp_path: Path) -> None:
    report = ssdsl.search("megatron", "gpt:tiny", "a100x8", params={"T": [1, 2]}, tries=8, top=2)
    assert report.best is report.rows[0] and len(report.rows) == 2
    assert "best of each kind" in str(report) and "<iframe" in report._repr_html_()
    report.write(tmp_path / "best.ssp")
    again = ssdsl.search(tmp_path / "best.ssp", "gpt:tiny", "a100x8", tries=1, orders=False)
    assert again.baseline.report.step_s == report.best.report.step_s


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"memory": 0}, ValueError),
        ({"devices": range(1, 1)}, ValueError),
        ({"devices": 64}, ValueError),
        ({"devices": 0}, ValueError),
        ({"params": {"M": []}}, ValueError),
        ({"params": {"M": "4"}}, ValueError),
        ({"params": {"XX": 3}}, PlanError),
    ],
)
def test_numbers_that_are_none(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ssdsl.search("megatron", "gpt:tiny", "a100x8", **given)
