"""What the tests of the documentation share: its plans, and models captured once."""

import re
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ssdsl.model.graph import Graph
from tests.captured import graph_of as captured_graph

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```ssp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- ([a-z ]+): (.*) -->")


@dataclass(frozen=True)
class Block:
    """A plan of a page, whole: behind the one that it continues. `error` is the code of the mistake that it shows.

    A `model` of the page's own is named by page and file, as `cookbook/lora.py:llama`.
    """

    page: str
    line: int
    text: str
    name: str | None
    model: str
    error: str | None


def blocks_of(page: Path) -> list[Block]:
    """The ssp blocks of a page, read with the comments above each."""
    text = page.read_text("utf-8")
    found: list[Block] = []
    files = {name for name, _ in FILE.findall(text)}
    for match in BLOCK.finditer(text):
        notes = dict(NOTE.findall(match[1]))
        before = next((b.text for b in found if b.name == notes.get("fragment after", "")), "")
        assert before or "fragment after" not in notes, f"{page.name} has no block {notes['fragment after']}"
        line = text.count("\n", 0, match.start(2))
        name, model, error = notes.get("name"), notes.get("model", "gpt:tiny"), notes.get("error")
        if model.partition(":")[0] in files:
            model = f"{page.stem}/{model}"
        assert notes.keys() <= {"name", "model", "error", "fragment after"}, notes
        found.append(Block(page.name, line, before + match[2], name, model, error))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a `block` is one of every plan in the documentation."""
    if "block" in metafunc.fixturenames:
        metafunc.parametrize("block", BLOCKS, ids=[f"{b.page}:{b.line}" for b in BLOCKS])


@pytest.fixture(scope="session")
def blocks() -> list[Block]:
    return BLOCKS


@pytest.fixture(scope="session")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Graph]:
    """A model's graph by its name as on the command line, or as a `Block` names one of its page."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        (folder / page.stem).mkdir(exist_ok=True)  # README of the project and of docs
        for name, text in FILE.findall(page.read_text("utf-8")):
            (folder / page.stem / name).write_text(text)

    @cache
    def captured(spec: str) -> Graph:
        own = folder / spec.partition(":")[0]
        with chdir(ROOT):
            return captured_graph(f"{folder}/{spec}" if own.is_file() else spec)

    return captured
