"""Memory and communication by line of the plan: they add up to the simulator's figures, each at the right line."""

from math import prod
from pathlib import Path

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.model.graph import Graph
from ssdsl.record import replace
from ssdsl.show.advice.by_line import by_line_view, in_collectives_s
from ssdsl.show.view import as_json
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.simulate.timeline import EventKind
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """\
mesh gpus(dp = 2, tp = 2)
split model by batch into dp, m = 2
split model by heads into tp
split model by ffn into tp
split model by vocab into tp
assign model to gpus
"""
SHARDED = (
    PLAN
    + """\
split model.optimizer by row into dp
split model.grads by row into dp
"""
)
# gpus[pp = 0] has three functions of the model's own forward: the loss, which waits, and what stands around it
ONE_NAME = """\
mesh gpus(pp = 2)
let wide = model["wte"] | model["lm_head"] | model.cross_entropy_loss
split model by batch into m = 2
split wide by vocab into pp
let stage = balance(model - wide, 2)
assign wide to gpus
assign stage[1 - s] to gpus[pp = s] for s in 0..2
"""
PIPELINE = """\
use pipeline: gpipe
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
gpipe(stage, 4)
"""
FROZEN = """\
mesh gpus(dp = 2)
split model by batch into dp
assign model["layers.0"] to gpus
assign model - model["layers.0"] to gpus
"""
Row = dict[str, float]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of("gpt:350m,layers=2,batch=32,seq=64")


def by_line(graph: Graph, text: str, cluster: Cluster | None = None) -> tuple[Report, dict[str, Row]]:
    """The rows by the number of their line, with the transfer behind it if they name one, or by their words."""
    cluster = cluster or load_cluster("v100x32")
    compiled = compile_source(Source("p.ssp", text), graph, {}, Path(), cluster)
    report = simulate(compiled.program, compiled.source, cluster)
    rows = as_json(by_line_view(compiled.program, cluster, report))
    found = {}
    for row in rows:
        statement = str(row.pop("statement"))
        name, _, rest = statement.partition(":")
        line, (_, named, transfer) = rest.partition(":")[0], statement.partition("; ")
        key = f"{line}{named}{transfer}" if name == "p.ssp" else statement
        found[key] = {k: float(v or 0) for k, v in row.items()}
    return report, found


@pytest.mark.parametrize("text", [PLAN, SHARDED, PLAN.replace(", m = 2", ""), ONE_NAME, PIPELINE])
def test_they_add_up(graph: Graph, text: str) -> None:
    report, rows = by_line(graph, text)
    assert sum(r["peak_bytes"] for r in rows.values()) == pytest.approx(report.peak_bytes, abs=len(rows))
    assert sum(r["peak_share"] for r in rows.values()) == pytest.approx(1)
    held = [sum(w.time_s for w in report.timeline.waits if w.row == row) for row in range(len(report.devices))]
    waits = (in_collectives_s(device) + held_s for device, held_s in zip(report.devices, held, strict=True))
    assert sum(r["waits_s"] for r in rows.values()) == pytest.approx(max(waits))


def test_functions_of_one_name_are_told_apart(graph: Graph) -> None:
    """What one of them waits for is no other's: all that the device waits for is of a statement."""
    report, rows = by_line(graph, ONE_NAME)
    functions = {(e.name, e.function) for e in report.timeline.events if e.row == 0 and e.kind is EventKind.FORWARD}
    names = [name for name, _ in functions]
    assert max(map(names.count, names)) == 3 and "(no statement)" not in rows


def test_collectives_come_from_the_split_along_whose_axis_they_go(graph: Graph) -> None:
    """Attention and feed-forward have two all_reduces a layer each; without the one statement its share is gone."""
    _, rows = by_line(graph, PLAN)
    assert rows["3"]["waits_s"] == pytest.approx(rows["4"]["waits_s"]) and rows["3"]["waits_s"] > 0
    _, without = by_line(graph, PLAN.replace("split model by heads into tp\n", "\n"))
    assert "3" not in without and without["4"]["waits_s"] == pytest.approx(rows["4"]["waits_s"], rel=0.01)
    assert rows["6"]["waits_s"] < 0.05 * rows["4"]["waits_s"]  # only a weight whose readers no statement splits


def test_a_transfer_is_of_the_assign_that_places_its_reader(graph: Graph) -> None:
    """Two stages on two nodes that are a second apart: a step is a trip there, one back, and the sum of a tied
    weight."""
    cluster = load_cluster("v100x32")
    (group,) = cluster.groups
    slow = tuple(replace(x, link=replace(x.link, send_latency=1.0)) for x in group.levels)
    report, rows = by_line(graph, PIPELINE, replace(cluster, groups=(replace(group, levels=slow),)))
    named = {key.partition("; ")[2]: row["waits_s"] for key, row in rows.items() if key.startswith("5; ")}
    there, back = (f"from gpus[pp = {a}] to gpus[pp = {1 - a}]" for a in (0, 1))
    assert [name.rpartition(" from ")[0] for name in named] == [
        "transfer of gradient of transformer.h.1 add",
        "transfer of transformer.h.1 add",
    ]
    assert [name.endswith(way) for name, way in zip(named, (back, there), strict=True)] == [True, True]
    assert list(named.values()) == pytest.approx([1.0, 1.0], abs=0.1)
    assert sum(row["waits_s"] for row in rows.values()) == pytest.approx(report.step_s, rel=0.2)


def test_memory_comes_from_what_cuts_it(graph: Graph) -> None:
    _, rows = by_line(graph, PLAN)
    weights = {3: 2 * 4 * 1024**2, 4: 2 * 8 * 1024**2}  # of two layers: heads, feed-forward
    for line, elements in weights.items():
        state = elements / 2 * (4 + 4 + 8)  # half on each device: weights, gradients, moments
        assert rows[str(line)]["peak_bytes"] > state
    assert rows["4"]["peak_bytes"] > rows["3"]["peak_bytes"]


def test_sharded_state_is_of_the_statement_that_shards_it(graph: Graph) -> None:
    _, before = by_line(graph, PLAN)
    report, rows = by_line(graph, SHARDED)
    parts = dict(report.devices[0].peak_parts)
    assert rows["7"]["peak_bytes"] == pytest.approx(parts["optimizer"], abs=2)
    assert rows["8"]["peak_bytes"] == pytest.approx(parts["gradients"], abs=2)
    assert rows["4"]["peak_bytes"] < before["4"]["peak_bytes"]


def test_what_follows_from_weights_in_parts_is_of_their_statement(graph: Graph) -> None:
    """One line cuts weights, gradients and the optimizer's state."""
    report, rows = by_line(graph, PLAN + "split model.weights by row into dp\n")
    parts = dict(report.devices[0].peak_parts)
    assert rows["7"]["peak_bytes"] == pytest.approx(sum(parts[p] for p in ("weights", "gradients", "optimizer")), abs=2)


def test_a_weight_that_is_not_trained_is_of_the_statement_that_places_it() -> None:
    """Its bytes are no part of those of weights that are trained."""
    graph = graph_of("tiny.py:chain_frozen")
    _, rows = by_line(graph, FROZEN)
    frozen = [v for v in graph.values.values() if v.origin == "weight" and v.name.startswith("layers.0.")]
    assert frozen and rows["3"]["peak_bytes"] == sum(v.itemsize * prod(v.shape) for v in frozen)
