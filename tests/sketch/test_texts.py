"""The texts that a search reads."""

from pathlib import Path

from ssdsl.lang.shipped import plan_path
from ssdsl.sketch.texts import read_texts


def test_a_copy_of_a_searched_plan_may_be_written_again(tmp_path: Path) -> None:
    texts, copy = read_texts(["data_parallel"], None), tmp_path / "found.ssp"
    assert not texts.has(copy)
    copy.write_text(plan_path("data_parallel").read_text("utf-8"))
    assert texts.has(copy) and texts.has(plan_path("data_parallel")) and not texts.has(plan_path("megatron"))
