"""`ssdsl search --explain LINE`: what is known of a number that a plan leaves open."""

from ssdsl.cluster.load import load_cluster
from ssdsl.plan.model_index import index_model
from ssdsl.show.tables.explain import effects_view, names_by_line, numbers_view
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """param D = 2
param T = 2
mesh gpus(dp = D, tp = T)
split model by batch into dp
split model by heads into tp
for layer in each("h.*"):
    either:
        prefetch layer by 2
    or:
        recompute layer
assign model to gpus
"""


def test_the_tables_behind_a_line() -> None:
    graph, cluster = graph_of("gpt:350m,layers=4,batch=64", True), load_cluster("a100x4")
    sketch = sketch_of(Source("plan.ssp", PLAN), None, index_model(graph), range(4, 5), {})
    assert names_by_line(sketch.script) == {1: "D", 2: "T", 7: "either:7"}
    search = Search(graph, cluster, [sketch], sketch, range(4, 5), memory=0.5)
    *_, found = search.results()
    best = min((t for t in found.tried if t.fits and not t.changes), key=lambda t: t.cost)
    rows = {row[0]: row for row in numbers_view(found, sketch, "D").rows}
    assert set(rows) == {1, 2, 4}
    assert rows[best.opened["D"]][1] == best.report.step_s and rows[best.opened["D"]][3] == "yes"
    known = search.opened_choices(found)
    assert known is not None
    ((devices, turns, number, changes),) = effects_view("either:7", known).rows
    assert (devices, turns) == ("gpus", "0, 1, 2, 3") and number != known.own["either:7"]
    assert "ms longer" in str(changes) or "ms shorter" in str(changes)
