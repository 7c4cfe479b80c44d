"""What is open in files that a plan uses: told with its place, for what the plan's imports reach."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.parse import parse
from ssdsl.plan.model_index import index_model
from ssdsl.show.tables.search import search_views
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import sketch_of
from ssdsl.sketch.used_files import open_in_used_files
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

ERRORS = Path(__file__).parents[1] / "errors"
LIBRARY = """use "inner.ssp": widest

param T = 2 in [1, 2, 4] "tensor-parallel width"
param Z = 1 in [1, 2, 3]
param K = 3

def stages(model, S):
    return cut(model, S)

let width = widest * T
let other = K
let fixed(model) = cut(model, 2, before = ["h.1"])
"""
INNER = "use pipeline: gpipe\nparam W = 1 in [1, 2]\nlet widest = W\n"
PLAN = """use "parts.ssp": {}

param D = 2
mesh gpus(dp = D)
split model by batch into dp
assign model to gpus
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts.ssp").write_text(LIBRARY)
    (tmp_path / "inner.ssp").write_text(INNER)
    return tmp_path


def script(names: str) -> Source:
    return Source("plan.ssp", PLAN.format(names))


def test_each_place(folder: Path, golden: Callable[[Path, str], None]) -> None:
    found = open_in_used_files(parse(script("stages, width, fixed")), folder)
    assert [d.written for d in found] == ["param T = 2 in [1, 2, 4]", "cut(model, S)", "param W = 1 in [1, 2]"]
    golden(ERRORS / "E0285.err", "\n".join(map(render, found)))


def test_what_the_plan_does_not_take_is_not_told(folder: Path) -> None:
    assert open_in_used_files(parse(script("other, fixed")), folder) == ()
    assert open_in_used_files(parse(script("missing")), folder) == ()
    (folder / "inner.ssp").unlink()
    assert len(open_in_used_files(parse(script("width")), folder)) == 1
    (folder / "inner.ssp").write_text('use "parts.ssp": width\nlet widest = width\n')  # a cycle
    assert len(open_in_used_files(parse(script("width")), folder)) == 1


def test_a_search_says_so(folder: Path) -> None:
    graph, cluster = graph_of("gpt:tiny"), load_cluster("a100x8")
    one = sketch_of(script("stages, width"), folder, index_model(graph), range(2, 3))
    *_, found = Search(graph, cluster, [one], one, range(2, 3)).run(1)
    *_, last = search_views("search", found, graph, cluster, 1)
    said = [line for line in last.notes if line.startswith("E0285 parts.ssp:8:12: `cut(model, S)`")]
    assert len(said) == 1 and "call it in the plan" in said[0]
