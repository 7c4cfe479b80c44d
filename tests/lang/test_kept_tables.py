"""The parser's tables are kept for the next process, which reads no plan otherwise for it."""

from pathlib import Path

import pytest

from ssdsl.lang import parse as parsing
from ssdsl.text.source import Source

PLAN = Source("plan.ssp", "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ssdsl" / "grammar"


def read_anew() -> object:
    parsing.grammar_parser.cache_clear()
    parsing.parse.cache_clear()
    return parsing.parse(PLAN)


@pytest.mark.parametrize("spoil", [bytes, lambda data: data[:200], lambda data: b"garbage" + data])
def test_tables_that_cannot_be_read_are_made_anew(folder: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    first = read_anew()
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(spoil(whole))
    assert read_anew() == first
    assert kept.read_bytes()[:40] == whole[:40]


def test_where_nothing_can_be_kept_plans_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert read_anew() == parsing.parse(PLAN)
