"""Views: numbers as people read them, paths of repeated layers as one, and nothing wider than the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from ssdsl.plan.eval.paths import starred, starred_module
from ssdsl.run.result import RankResult, RunResult, Traffic
from ssdsl.show.pattern import merged
from ssdsl.show.run_report import communication_view, run_views, steps_view
from ssdsl.show.view import Column, Kind, View, as_json, broken, seconds, size, table


def printed(view: View, width: int) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table(view, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_layers_as_one() -> None:
    assert merged(["h.0.attn", "h.1.attn", "h.3.attn"]) == "h.{0-1,3}.attn"
    assert starred("h.0.attn") == starred("h.12.attn") and starred("seq.0") == "seq.0"
    assert starred_module("h.0") == starred_module("h.1") == "h.*"
    assert merged(["lm_head"]) == "lm_head"


def test_numbers() -> None:
    assert [size(n) for n in (0, 999, 1234, 12_345_678)] == ["0 B", "999 B", "1.23 kB", "12.3 MB"]
    assert [seconds(t) for t in (0.0123, 2.5)] == ["12.3 ms", "2.5 s"]


def test_paths_break_at_dots() -> None:
    assert broken("transformer.h.0.attn.c_attn", 16) == "transformer.h.0\n.attn.c_attn"


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits(width: int) -> None:
    columns = (Column("path", Kind.PATH), Column("n", Kind.COUNT), Column("words", fold=True))
    view = View("wide", columns, (("a.long.path" * 9, 1234567, "many words " * 20),))
    text = printed(view, width)
    assert "1,234,567" in text and all(len(line) <= width for line in text.splitlines())
    assert as_json(view)[0]["n"] == 1234567


def run_of(steps: int) -> RunResult:
    comm = {"all_reduce": Traffic(2 * steps, 100 * steps)}
    losses, times = tuple(float(i) for i in range(steps)), (0.5,) + (0.01,) * (steps - 1)
    ranks = (RankResult(0, "a", losses, times, 10, comm), RankResult(1, "b", (), times, 20, {}))
    return RunResult(steps, ranks, None)  # type: ignore[arg-type]


def test_the_report_of_a_run(tmp_path: object) -> None:
    result = run_of(100)
    assert result.median_step_s == 0.01
    assert communication_view(result).rows == (("all_reduce", 2, 100.0, 100.0),)
    shown = [row[0] for row in steps_view(result).rows]
    assert shown[:2] == [0, 1] and shown[-1] == 99 and "..." in shown and len(shown) < 20
    assert all(printed(view, 80) for view in run_views(result))
