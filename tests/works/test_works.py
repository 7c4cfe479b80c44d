"""docs/works.md: its table of statements has the codes that there are, and some of its cells are tried again."""

import re
from functools import cache
from pathlib import Path

import pytest

from bench.works.page import MARKS, TITLE, Cells, Found, found_of, lines_of, mark, section_of, with_section
from bench.works.run import MODELS, Tries, shared_out
from bench.works.snippets import SNIPPETS, pairs, plan_of
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.matrix.cell import CellOutcome
from ssdsl.text.diagnostic import REGISTRY
from ssdsl.text.source import Source

PAGE = Path(__file__).parents[2] / "docs" / "works.md"
BY_NAME = {s.name: s for s in SNIPPETS}


def section() -> str:
    text = PAGE.read_text("utf-8")
    return text[text.index(TITLE) :].partition("\n## ")[0]


def table() -> dict[tuple[str, str], str]:
    """The mark of each pair, both ways."""
    block = section().partition("```text\n")[2].partition("```")[0].splitlines()
    names = [s.name for s in SNIPPETS]
    rows = dict(zip(names, block[1:], strict=True))
    wide = max(map(len, names))
    found: dict[tuple[str, str], str] = {}
    for name, row in rows.items():
        assert row[4:].startswith(name)
        marks = row[4 + wide :].split()[: len(names)]
        found |= {(name, other): letter for other, letter in zip(names, marks, strict=True)}
    return found


def test_the_table_has_each_pair_and_nothing_wrong_but_what_torch_compiles() -> None:
    """torch 2.13 compiles convolutions of a whole model to gradients of zero (docs/performance.md)."""
    found = table()
    assert len(found) == len(SNIPPETS) ** 2 and {*found.values()} <= {*MARKS.values()}
    assert all("compiled" in pair for pair, mark in found.items() if mark == MARKS["wrong"])
    assert all(found[one, other] == found[other, one] for one, other in found)
    assert all(found[name, name] in (MARKS["all"], MARKS["some"]) for name in BY_NAME)


def test_each_refusal_has_a_code_and_lines_of_the_plan() -> None:
    rows = re.findall(r"(?m)^\| (.*?) \| ([\w, ]*) \| (E\d{4}) \| (.*?) \| (.*) \|$", section())
    assert rows and {code for _, _, code, _, _ in rows} <= REGISTRY.keys()
    refused = {pair for pair, letter in table().items() if letter in (MARKS["none"], MARKS["some"])}
    told = {tuple(name.split(" x ")) for names, *_ in rows for name in names.split(", ")}
    told |= {(name, name) for (name, *rest) in told if not rest}
    assert {pair for pair in refused if pair in told or pair[::-1] in told} == refused
    assert all("`" in lines for *_, lines, _ in rows)


@cache
def tries(name: str) -> Tries:
    return Tries(name, MODELS[name])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dp", "zero3"),
        ("tp", "zb_v"),
        ("sp", "recompute"),
        ("gpipe", "one_f_one_b"),
        ("ring", "tp"),
        ("chimera", "zb_h1"),
    ],
)
def test_cells_are_as_the_table_says(one: str, other: str) -> None:
    found = found_of(tries("gpt").of(BY_NAME[one], BY_NAME[other], trains=True))
    letter = table()[one, other]
    if found.outcome is CellOutcome.REFUSED:
        assert letter in (MARKS["none"], MARKS["some"]) and f"| {found.code} |" in section()
    else:
        assert found.outcome is CellOutcome.VERIFIED and letter in (MARKS["all"], MARKS["some"])


def test_two_snippets_make_one_plan() -> None:
    text = plan_of(BY_NAME["sp"], BY_NAME["zb_v"])
    assert text.count("mesh ") == text.count("assign ") == 1 and "tp = 2, pp = 2" in text
    source = Source("plan.ssp", plan_of(BY_NAME["dp"], BY_NAME["zero3"]))
    assert source.text.count("split model by batch into dp\n") == 1
    assert format_script(parse(source), source)
    assert all(parse(Source("plan.ssp", plan_of(*dict.fromkeys(pair)))) for pair in pairs())


def test_what_is_wrong_is_marked() -> None:
    right, refused, wrong = (
        Found(outcome) for outcome in (CellOutcome.VERIFIED, CellOutcome.REFUSED, CellOutcome.WRONG)
    )
    assert mark({}) == "." and mark({"gpt": right}) == "v" and mark({"gpt": right, "swin": refused}) == "~"
    assert mark({"gpt": refused}) == "x" and mark({"gpt": right, "swin": wrong}) == "!"


def test_each_pair_is_trained_on_one_model_or_on_all() -> None:
    proved, refused = Found(CellOutcome.PROVED), Found(CellOutcome.REFUSED)
    cells: Cells = {("dp", "tp"): {"a": proved, "b": proved}, ("dp", "sp"): {"a": proved, "b": proved}}
    cells["tp", "sp"] = {"a": refused}
    assert shared_out(cells, False) == {"a": [("dp", "tp")], "b": [("dp", "sp")]}
    both = [("dp", "tp"), ("dp", "sp")]
    assert shared_out(cells, True) == {"a": both, "b": both}


def test_the_section_takes_the_place_of_an_earlier_one() -> None:
    page = f"# What works\n\n## Plans of transformers\n\nTheirs.\n\n{TITLE}\n\nold\n\n## Other\n\nTheirs.\n"
    new = with_section(page, f"{TITLE}\n\nnew\n\n")
    assert "old" not in new and new.count("Theirs.") == 2 and "\n## Other\n" in new
    assert TITLE in with_section("", section_of({}, {}))
    reason = tries("gpt").of(BY_NAME["gpipe"], BY_NAME["one_f_one_b"]).reason
    assert reason is not None and len(lines_of(reason)) >= 1
