"""Stages on unlike numbers of devices: what is found is what enumeration finds, fits, and is written as a plan."""

from functools import cache
from itertools import combinations, product

import pytest

from ssdsl.analyse.state import MIXED
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.ir.program import Kernels
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.plan.model_index import index_model
from ssdsl.record import replace
from ssdsl.sketch.answers.widths import StageWidths, WidthFinder, is_open, stages_param, with_widths
from ssdsl.sketch.answers.write import written
from ssdsl.sketch.reasons import notes
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of

MODEL = "gpt:350m,layers=6,batch=32,vocab=1024,seq=1024"
PATH = plan_path("sketch_stages")


def sketch(devices: int, text: str = "", model: str = MODEL, **asked: int) -> Sketch:
    source = Source("x.ssp", text) if text else read_source(PATH)
    numbers = {name: (value,) for name, value in asked.items()}
    return sketch_of(source, PATH.parent, index_model(graph_of(model, meta=True)), range(devices, devices + 1), numbers)


def searched(cluster: Cluster, one: Sketch, devices: int) -> SearchResult:
    work = Search(graph_of(MODEL, meta=True), cluster, [one], one, range(devices, devices + 1))
    *_, found = work.results()
    others = found.beaten, found.refused, found.elsewhere, found.cannot_fit, found.left
    assert found.simulated + sum(others) == found.settings
    return work.proved(found, 3)


@cache
def of_eight_in_three() -> SearchResult:
    """The answer for three stages on eight devices."""
    return searched(load_cluster("p3x8"), sketch(8, D=8, S=3, T=1, M=8, R=0, Z=0), 8)


def with_other_stages(found: SearchResult) -> list[Tried]:
    return [t for t in found.ranked if t.changes == (PlanChange.CUTS,)]


def enumerated(cluster: Cluster, one: Sketch, devices: int, stages: int) -> float:
    """The shortest simulated step of all widths and all cuts between layers that fit."""
    workspace, best = Workspace(graph_of(MODEL, meta=True), cluster), float("inf")
    for widths in product((1, 2, 4), repeat=stages):
        for before in combinations([f"transformer.h.{n}" for n in range(6)], stages - 1):
            if sum(widths) == devices:
                said = with_widths(one, {}, StageWidths(widths, before))
                try:
                    report = workspace.simulate(workspace.candidate(said.source, said.fixed, PATH.parent), cluster)
                except PlanError:
                    continue
                best = best if report.over_bytes else min(best, report.step_s)
    return best


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("devices", "stages"), [(4, 2), (4, 3), (8, 3)])
def test_it_is_the_best_of_all(devices: int, stages: int) -> None:
    cluster = load_cluster(f"p3x{devices}")
    one = sketch(devices, D=devices, S=stages, T=1, M=8, R=0, Z=0)
    found = of_eight_in_three() if devices == 8 else searched(cluster, one, devices)
    best = next(t for t in found.ranked if PlanChange.ORDER not in t.changes)
    assert best.report.step_s <= 1.01 * enumerated(cluster, one, devices, stages)


def test_the_number_of_stages_is_found_too() -> None:
    cluster = load_cluster("p3x8")
    one = sketch(8, T=1, M=8, R=0, Z=0)
    assert (one.open[0].name, one.open[0].why) == ("D", "the number of devices of all stages")
    found = searched(cluster, one, 8)
    spread = with_other_stages(found)
    assert len({t.values["S"] for t in spread}) > 1
    for tried in spread:
        plain = next(t for t in found.tried if t.values == tried.values and not t.changes)
        assert tried.report.step_s < plain.report.step_s


def test_defaults_need_not_be_a_plan() -> None:
    """No 2 of the numbers 1 to 16 make 64: other numbers of stages are open all the same."""
    one = sketch(64, D=64, R=0, Z=0)
    assert one.meshes is None and {v["S"] for v in one.settings(range(64, 65))} == {1, 2, 3, 4, 6, 8, 16}


def test_it_is_written_and_read_again() -> None:
    cluster, found = load_cluster("p3x8"), of_eight_in_three()
    best, *_ = with_other_stages(found)
    assert best.family == "data + pipeline"
    text = written(best.sketch, best.setting.params, notes(found, best))
    assert "widths(D, S, [T, 2 * T, 4 * T, 8 * T, 16 * T], each = [" in text and 'before = ["transformer.h.' in text
    again = Workspace(graph_of(MODEL, meta=True), cluster)
    candidate = again.candidate(Source("found.ssp", text), {}, None)
    again.proved(candidate)
    assert again.simulate(candidate, cluster).step_s == best.report.step_s


def test_less_memory_gives_other_stages() -> None:
    cluster = load_cluster("p3x8")
    one = sketch(8, D=8, S=3, T=1, M=8, R=0, Z=0)
    roomy = of_eight_in_three().best
    assert roomy is not None
    group, least = cluster.groups[0], int(0.97 * roomy.report.peak_bytes)
    tight = replace(cluster, groups=(replace(group, device=replace(group.device, memory_bytes=least)),))
    found = searched(tight, one, 8)
    assert all(t.report.peak_bytes <= least for t in found.ranked)
    assert found.best is None or found.best.report.step_s >= roomy.report.step_s


def test_stages_of_equal_links_are_one_kind() -> None:
    finder = WidthFinder(index_model(graph_of(MODEL, meta=True)), load_cluster("p3x16"), MIXED, Kernels.EAGER)
    kinds = finder._alike(4, 16, (4,))
    assert kinds == [frozenset({0, 4, 8, 12})]
    across = finder._alike(2, 16, (1, 2))
    assert across == [frozenset({*range(15)} - {7}), frozenset({7})]


def test_what_is_open() -> None:
    text = PATH.read_text()
    assert is_open(sketch(8)) and stages_param(sketch(8)) == "S"
    for old, new in (
        ("widths(D, S, [", "widths(D, 2, ["),
        ("8 * T, 16 * T]", "8 * T, 16 * T], each = [1, 1]"),
        ("cut(model, S)", 'cut(model, S, before = ["h.3"])'),
    ):
        assert not is_open(sketch(2, text.replace(old, new)))
