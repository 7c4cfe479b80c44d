"""The plans of the documentation mean what their text says: each compiles, or is the mistake that it shows."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from ssdsl.lang import nodes
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.parser.indentation import KEYWORDS
from ssdsl.lower.lower import lower
from ssdsl.plan.context import begin
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.model_index import index_model
from ssdsl.plan.statements.builtins import builtin_scope
from ssdsl.record import field_names
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
LANGUAGE = (ROOT / "docs" / "language.md").read_text("utf-8")


@pytest.mark.thinned(26)
def test_a_plan_compiles_or_is_the_mistake_that_it_shows(
    block: Any, blocks: list[Any], graph_of: Callable[[str], Any], tmp_path: Path
) -> None:
    for other in blocks:
        if other.page == block.page and other.name and other.name.endswith(".ssp"):
            (tmp_path / other.name).write_text(other.text)
    source = Source(f"{block.page}:{block.line}", block.text)
    found: list[str] = []
    try:
        plan, warnings = interpret_all(parse(source), graph_of(block.model), {}, tmp_path)
        lower(plan)
        found = [d.code for d in warnings]
    except PlanError as e:
        found = [d.code for d in e.diagnostics]
    assert found == ([block.error] if block.error else [])


def test_plans_are_formatted(blocks: list[Any]) -> None:
    sources = [Source(f"{b.page}:{b.line}", b.text) for b in blocks if b.error != "E0110"]
    assert [s.name for s in sources if format_script(parse(s), s) != s.text] == []


def test_everything_has_an_example(blocks: list[Any]) -> None:
    """Every statement and every form of expression."""
    used = {type(node) for b in blocks if b.page == "language.md" and b.error != "E0110" for node in _nodes(b.text)}
    assert used >= {*get_args(nodes.Statement), *get_args(nodes.Expr)}


def test_the_lists_of_words_are_those_of_the_language(graph_of: Callable[[str], Any]) -> None:
    """The lists of words are those of the language."""
    section = LANGUAGE.partition("### Words")[2].partition("###")[0]
    reserved, known = section.split("These have a meaning")
    assert set(re.findall(r"`(\w+)`", reserved)) == KEYWORDS
    context = begin(index_model(graph_of("gpt:tiny")))
    assert set(re.findall(r"`(\w+)`", known)) == builtin_scope(context).values.keys()


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
    assert [f"{page.name}: {target}" for page in pages for target in _lost(page)] == []


def _lost(page: Path) -> Iterator[str]:
    """Yields the links of a page that lead nowhere."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if not target.startswith("https://") and not (there.exists() and (not anchor or anchor in _anchors(there))):
            yield target


def _nodes(text: str) -> list[Any]:
    """All nodes of a plan's syntax."""
    found, queue = [], [parse(Source("plan.ssp", text))]
    while queue:
        node = queue.pop()
        if isinstance(node, tuple):
            queue += node
        elif isinstance(node, nodes.Node):
            found.append(node)
            queue += [getattr(node, field) for field in field_names(node)]
    return found
