"""Views: numbers as people read them, paths of repeated layers as one, and nothing wider than the terminal."""

import re
from functools import cache
from io import StringIO

import pytest
from rich.console import Console

from ssdsl.lang.assets import library_files
from ssdsl.lang.shipped import shipped_plans
from ssdsl.plan.paths import starred, starred_module
from ssdsl.record import replace
from ssdsl.run.results import CollectiveCalls, CompiledRuns, RankResult, RunResult
from ssdsl.show.pattern import merged
from ssdsl.show.tables.catalogue import library_view, models_view, operators_view, plans_view
from ssdsl.show.tables.run_report import communication_view, run_views, steps_view
from ssdsl.show.view import FORMATS, Column, ColumnKind, View, as_json, broken, seconds, size, table


def printed(view: View, width: int) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table(view, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_names_that_differ_in_a_layers_number_are_one() -> None:
    assert merged(["h.0.attn", "h.1.attn", "h.3.attn"]) == "h.{0-1,3}.attn"
    assert starred("h.0.attn") == starred("h.12.attn") and starred("seq.0") == "seq.0"
    assert starred_module("h.0") == starred_module("h.1") == "h.*"
    assert merged(["lm_head"]) == "lm_head"


def test_sizes_and_times_have_three_digits_and_a_unit() -> None:
    assert [size(n) for n in (0, 999, 1234, 12_345_678)] == ["0 B", "999 B", "1.23 kB", "12.3 MB"]
    assert [size(n) for n in (999_700, 999.6e6)] == ["1 MB", "1 GB"] and seconds(0.9997) == "1 s"
    assert [seconds(t) for t in (0.0123, 2.5, 1108.4, 3.8e-11)] == ["12.3 ms", "2.5 s", "1,108 s", "0 ms"]


def test_paths_break_at_dots() -> None:
    assert broken("transformer.h.0.attn.c_attn", 16) == "transformer.h.0\n.attn.c_attn"


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits(width: int) -> None:
    columns = (Column("path", ColumnKind.PATH), Column("n", ColumnKind.COUNT), Column("words", fold=True))
    view = View("wide", columns, (("a.long.path" * 9, 1234567, "many words " * 20),))
    text = printed(view, width)
    assert "1,234,567" in text and all(len(line) <= width for line in text.splitlines())
    assert as_json(view)[0]["n"] == 1234567


@cache
def catalogue(name: str) -> View:
    """A view of what ships, which reads all its files."""
    match name:
        case "models":
            return models_view()
        case "plans":
            return plans_view(shipped_plans())
        case "operators":
            return operators_view()
        case _:
            return library_view(library_files())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", ["models", "plans", "library", "operators"])
def test_nothing_is_cropped_at_any_width(name: str, width: int) -> None:
    """Every word of every column that is shown is there, and what is not shown is named."""
    view = catalogue(name)
    text = printed(view, width)
    assert all(len(line) <= width for line in text.splitlines())
    dropped = re.search(r"too narrow for: (.*); a wider", text.replace("\n", " "))
    names = dropped[1].split(", ") if dropped else []
    for at, column in enumerate(view.columns):
        words = {word for row in view.rows for word in FORMATS[column.kind](row[at]).split()}
        assert column.name in names or all(word in text for word in words if len(word) < 20), column.name
    assert not names or all(c.drop for c in view.columns if c.name in names)


def test_a_number_is_never_broken() -> None:
    """Columns that do not fit side by side stand one below another."""
    columns = (Column("role", style="bold"), *(Column(f"figure{n}", ColumnKind.BYTES) for n in range(12)))
    view = View(
        "narrow", columns, (("stage0", *(123_400_000 + n * 1_000_000 for n in range(12))), ("stage1", *[5] * 12))
    )
    text = printed(view, 60)
    assert text.splitlines()[2:4] == ["role      stage0", "figure0   123 MB"] and "figure11  134 MB" in text
    assert printed(view, 140).splitlines()[1].split() == ["role", *(f"figure{n}" for n in range(12))]


def test_the_least_needed_column_goes_first() -> None:
    columns = (
        Column("name"),
        Column("long heading", ColumnKind.COUNT, drop=1),
        Column("longest heading", ColumnKind.COUNT, drop=2),
    )
    view = View("few", columns, (("x" * 40, 123_456_789, 123_456_789),))
    assert "too narrow for: longest heading;" in printed(view, 64)
    assert "too narrow for: long heading, longest heading;" in printed(view, 50).replace("\n", " ")


def test_long_names_break_behind_an_underscore() -> None:
    assert broken("h.0 scaled_dot_product_attention", 20) == "h.0 scaled_dot_\nproduct_attention"
    view = View("names", (Column("n"), Column("m", fold=True)), (("x" * 20, "seq=64 head_dimension.0=1024"),))
    lines = [line.split() for line in printed(view, 40).splitlines()]
    assert lines[3:] == [["x" * 20, "seq=64"], ["head_dimension.0="], ["1024"], []]


def run_of(steps: int) -> RunResult:
    comm = {"all_reduce": CollectiveCalls(2 * steps, 100 * steps)}
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
    some = CompiledRuns(2, 1, 3.0, {"head": "torch has too many graphs of it"}), CompiledRuns(0, 3, 4.0)
    ranks = tuple(replace(rank, runs=runs) for rank, runs in zip(result.ranks, some, strict=True))
    said = steps_view(replace(result, ranks=ranks)).notes
    assert "compiled 2 runs of operators and loaded 1 run of operators in 3 s, in the first step" in said
    assert "`head` runs operator by operator: torch has too many graphs of it" in said


def test_cells_become_long_before_headings() -> None:
    columns = (Column("a heading of words", ColumnKind.COUNT), Column("why", fold=True))
    found = printed(View("", columns, ((7, "one two three four"),)), 30)
    assert "one two three four" in found and "a heading of words" not in found
    assert "a heading of words" in printed(View("", columns, ((7, "one two three four"),)), 40)


def test_the_model_itself_has_a_word_in_tables_and_its_path_in_json() -> None:
    """A lone dot is taken for a typing error; `.` is what a plan writes."""
    rows = ((". sum",), ("h.0 add",), (".",), ("./plans",))
    view = View("communication", (Column("of", ColumnKind.PATH),), rows)
    said = printed(view, 60)
    assert "(model) sum" in said and ". sum" not in said and "h.0 add" in said and "./plans" in said
    assert [row["of"] for row in as_json(view)] == [". sum", "h.0 add", ".", "./plans"]
