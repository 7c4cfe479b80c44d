"""Cuts that a search finds: stages of unlike devices get work that they do in the same time; proved, and written."""

from pathlib import Path

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.lang.read import read_source
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers.cuts import is_open, with_cuts
from ssdsl.sketch.answers.write import written
from ssdsl.sketch.reasons import notes
from ssdsl.sketch.result import PlanChange
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = "gpt:350m,layers=8,batch=16"
SETTING = {"D": (1,), "T": (1,), "S": (2,), "M": (8,)}
NODES = """
[[nodes]]
device = "{}"
count = 1
devices = 1

[[nodes.levels]]
name = "node"
bandwidth_gb_s = 100
latency_us = 2
source = "made up"
"""


def sketch(plan: str = "pipeline") -> Sketch:
    source = read_source(EXAMPLES / f"{plan}.ssp")
    return sketch_of(source, EXAMPLES, index_model(graph_of(MODEL, meta=True)), range(2, 3), SETTING)


@pytest.fixture
def unlike(tmp_path: Path) -> Cluster:
    """A V100, then an A100, over a fast link."""
    known = (EXAMPLES.parent / "ssdsl/cluster/known/two_sites.toml").read_text()
    devices = known[known.index("[devices.a100]") : known.index("[[nodes]]")]
    across = '[[levels]]\nname = "cluster"\nbandwidth_gb_s = 50\nlatency_us = 4\nsource = "made up"\n'
    text = f'about = "two unlike devices"\n\n{devices}{NODES.format("v100")}{NODES.format("a100")}\n{across}'
    (tmp_path / "unlike.toml").write_text(text)
    return load_cluster(str(tmp_path / "unlike.toml"))


def test_the_faster_device_gets_more(unlike: Cluster) -> None:
    graph = graph_of(MODEL, meta=True)
    work = Search(graph, unlike, [sketch()], sketch(), range(2, 3))
    *_, before = work.run()
    *_, found = work.refined(before)
    found = work.proved(found, 5)
    assert before.best is not None and found.best is not None
    cut = next(t for t in found.ranked if t.changes == (PlanChange.CUTS,))
    assert cut.report.step_s < 0.95 * before.best.report.step_s
    busy = [device.compute_s for device in cut.report.devices]
    assert max(busy) < 1.25 * min(busy)
    text = written(cut.sketch, cut.setting.params, notes(found, found.best))
    assert 'cut(model, S, before = ["transformer.h.' in text and "# stages cut by arithmetic are" in text
    again = Workspace(graph, unlike)
    candidate = again.candidate(Source("found.ssp", text), {}, None)
    again.proved(candidate)
    assert again.simulate(candidate, unlike).step_s == cut.report.step_s


@pytest.fixture
def nodes_of_three(tmp_path: Path) -> Cluster:
    """Two nodes of three A100s over a slow link: of three pairs, the second one is on both nodes."""
    known = (EXAMPLES.parent / "ssdsl/cluster/known/a100x1024.toml").read_text()
    nodes = NODES.format("a100").replace("count = 1\ndevices = 1", "count = 2\ndevices = 3")
    across = '[[nodes.levels]]\nname = "cluster"\nbandwidth_gb_s = 5\nlatency_us = 4\nsource = "made up"\n'
    (tmp_path / "three.toml").write_text(f"{known[: known.index('[[nodes]]')]}{nodes}\n{across}")
    return load_cluster(str(tmp_path / "three.toml"))


@pytest.mark.slow
def test_a_stage_across_nodes_gets_less(nodes_of_three: Cluster) -> None:
    graph = graph_of("gpt:350m,layers=12,batch=32", meta=True)
    setting = {"D": (1,), "T": (2,), "S": (3,), "M": (8,)}
    plan = sketch_of(read_source(EXAMPLES / "megatron.ssp"), EXAMPLES, index_model(graph), range(6, 7), setting)
    work = Search(graph, nodes_of_three, [plan], plan, range(6, 7))
    *_, before = work.run()
    *_, found = work.refined(before)
    assert before.best is not None and found.best is not None
    cut = next(t for t in found.ranked if t.changes == (PlanChange.CUTS,))
    assert cut.report.step_s < 0.8 * before.best.report.step_s


def test_where_the_plan_leaves_them_open() -> None:
    assert is_open(sketch()) and is_open(sketch("megatron")) and not is_open(sketch("data_parallel"))
    found = with_cuts(sketch(), {"S": 2}, ("h.3",))
    assert 'cut(model, S, before = ["h.3"])' in found.source.text
    assert not is_open(found) and found.open == ()
