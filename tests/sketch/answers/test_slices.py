"""`into t = slices(T)`: a search tries the lengths that its simulated plans promise to be the best."""

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.parse import parse
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers.slices import Sample, call_of, lengths_of, with_slices
from ssdsl.sketch.result import PlanChange
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import sketch_of
from ssdsl.solve.slices import step_of
from ssdsl.text.source import Source
from tests.captured import graph_of
from tests.verify.conftest import ROOT

PLAN = (ROOT / "examples" / "terapipe.ssp").read_text("utf-8")


def time(length: int, before: int) -> float:
    return 1e-4 + 2e-5 * length + 1e-7 * length * (before + length / 2)


def test_lengths_follow_from_equal_slices() -> None:
    samples = [Sample(2048 // n, k * 2048 // n, time(2048 // n, k * 2048 // n)) for n in (2, 8, 32) for k in range(n)]
    found = lengths_of(samples, 8, 1)
    assert sum(found) == 2048 and found[0] > found[-1]
    assert step_of(time, found, 8) < min(step_of(time, [2048 // n] * n, 8) for n in (1, 2, 4, 8, 16, 32))


def test_a_search_tries_them() -> None:
    graph, cluster = graph_of("gpt:350m,layers=4,batch=1", True), load_cluster("a100x4")
    given = {"S": (4,), "M": (1,), "T": (1, 2, 4, 8)}
    sketch = sketch_of(Source("terapipe.ssp", PLAN), None, index_model(graph), range(4, 5), given)
    *_, found = Search(graph, cluster, [sketch], sketch, range(4, 5)).results()
    (sliced,) = (t for t in found.tried if t.changes == (PlanChange.SLICES,))
    assert sliced.setting.refused is None
    call = call_of(parse(sliced.sketch.source))
    assert call is None and "into t = slices(T, each = [" in sliced.sketch.source.text
    assert found.best is not None and found.best.report.step_s <= min(
        t.report.step_s for t in found.tried if t.setting.report is not None
    )


def test_the_number_follows_the_lengths() -> None:
    sketch = sketch_of(Source("terapipe.ssp", PLAN), None, index_model(graph_of("gpt:tiny")), range(2, 3), {"S": (2,)})
    made = with_slices(sketch, {"M": 2, "T": 2}, (40, 16, 8))
    assert made.fixed["T"] == 3 and "slices(T, each = [40, 16, 8])" in made.source.text
