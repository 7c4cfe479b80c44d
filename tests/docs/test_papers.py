"""The results on plans of papers have a row for each strategy and number of devices; docs/papers.md has two of their
pictures, and names plans that are shipped."""

import re
from pathlib import Path

import pytest

from bench.papers.comparisons import Comparison, pipelines
from bench.papers.page import (
    FOUND,
    HEAD,
    PAGE,
    NoMark,
    picture_mark,
    table_block,
    table_mark,
    with_block,
)
from bench.papers.run import found_on
from bench.papers.search import Found, Tried
from bench.papers.systems import ALL
from ssdsl.lang.shipped import shipped_plans

TEXT = Path(__file__).parents[2] / "docs" / "papers.md"
TABLES = [(comparison, devices) for comparison in ALL for devices in comparison.models]


def lines_behind(mark: str) -> list[str]:
    """The lines of the block behind a mark."""
    found = re.search(rf"^<!-- {re.escape(mark)} -->\n((?:[^\n]+\n)*)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None, mark
    return found[1].splitlines()


def test_its_plans_are_shipped() -> None:
    plans = {s.plan for c in ALL for s in c.strategies} | {name for c in ALL for name in c.sketches}
    assert plans <= dict(shipped_plans()).keys()
    links = re.findall(r"\]\((\.\./examples/[^)]*)\)", TEXT.read_text("utf-8"))
    assert links and all((TEXT.parent / link).exists() for link in links)


def test_its_pictures_are_those_of_the_results() -> None:
    text = TEXT.read_text("utf-8")
    for name in ("mbart", "alphafold2"):
        comparison = next(c for c in ALL if c.name == name)
        assert "\n".join(lines_behind(picture_mark(comparison))) in text


@pytest.mark.parametrize(("comparison", "devices"), TABLES, ids=[f"{c.name} on {n}" for c, n in TABLES])
def test_tables(comparison: Comparison, devices: int) -> None:
    first, *_ = lines = lines_behind(table_mark(comparison, devices))
    if first.startswith("Not searched yet"):
        pytest.skip(first)
    head, _, *rows = lines
    assert comparison.sketches
    names = [*((s.name, [s.plan]) for s in comparison.strategies), (FOUND, comparison.sketches)]
    assert head == HEAD and len(rows) >= len(comparison.strategies)  # the search may not have been run yet
    for (name, plans), row in zip(names, rows, strict=False):
        assert any(row.startswith(f"| {name}: `{plan}` | ") for plan in plans) and row.count(" | ") == HEAD.count(" | ")


@pytest.mark.parametrize("comparison", [c for c in ALL if c.drawn is not None], ids=lambda c: c.name)
def test_pictures(comparison: Comparison) -> None:
    assert comparison.drawn is not None
    fence, title, *_ = [*lines_behind(picture_mark(comparison)), ""]
    if fence.startswith("Not drawn yet"):
        pytest.skip(fence)
    assert fence == "```text" and title.startswith(comparison.drawn[0])


@pytest.mark.slow
def test_figures() -> None:
    """The table that is found soonest; `python -m bench papers` writes all of them."""
    comparison, devices = TABLES[0]
    found = found_on(comparison, devices, lambda _: None)
    assert table_block(comparison, found).splitlines() == lines_behind(table_mark(comparison, devices))


# -- the command ------------------------------------------------------------------------------------------------------


def test_layouts_use_all_devices_and_keep_tensor_parallelism_in_a_node() -> None:
    shapes = [*pipelines(32)]
    assert len(shapes) == 20 and all(s["D"] * s["T"] * s["S"] == 32 and s["T"] <= 16 for s in shapes)


def tried(step_s: float, peak_bytes: int) -> Tried:
    return Tried({"T": 2}, step_s, 0.25, peak_bytes, 32 * 10**9, 10**12, 10**9)


def test_a_row_says_how_much_memory_lacks_and_compares_what_fits() -> None:
    comparison = ALL[0]
    first, second, third, fourth = (s.name for s in comparison.strategies)
    found = {
        first: tried(10, 10**9),
        second: tried(25, 2 * 10**9),
        third: tried(5, 40 * 10**9),
        fourth: None,
        FOUND: None,
    }
    table = table_block(comparison, {name: t and Found("any", t, 3) for name, t in found.items()})
    plan, other, lacking, refused, nothing = table.splitlines()[2:]
    assert plan.endswith("| 10 s | 25.0% | 1 GB | 1 TB | 1 GB | – |") and "`T=2`, of 3" in plan
    assert other.endswith("| 2.50x |")
    assert "| 40 GB, out of memory by 8 GB |" in lacking and lacking.endswith("| – |")
    assert "| refused |" in refused and "| nothing |" in nothing


def test_a_block_takes_the_place_of_the_one_behind_its_mark() -> None:
    page = "<!-- name: a -->\n<!-- model: gpt -->\n```ssp\nx\n\ny\n```\n\n<!-- table: b -->\n| old |\n\nend\n"
    page = with_block(with_block(page, "name: a", "```ssp\nz\n```\n"), "table: b", "| new |\n")
    assert page == "<!-- name: a -->\n<!-- model: gpt -->\n```ssp\nz\n```\n\n<!-- table: b -->\n| new |\n\nend\n"
    with pytest.raises(NoMark, match="table: c"):
        with_block(page, "table: c", "")
