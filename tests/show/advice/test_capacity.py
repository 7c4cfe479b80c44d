"""What is said of a plan that needs too much memory, or repeats its work; the change does what it says."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.model.graph import Graph
from ssdsl.record import replace
from ssdsl.show.advice.capacity import capacity
from ssdsl.show.tables.check import repeated_warnings
from ssdsl.show.tables.report import report_json
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import graph_of

ERRORS = Path(__file__).parent.parent.parent / "errors"
GB = 10**9
REPLICAS = """\
param D = 2

mesh gpus(dp = D)

split model by batch into dp
assign model to gpus
"""
STAGES = """\
use pipeline: one_f_one_b

param S = 2
param M = 4

mesh gpus(pp = S)

split model by batch into m = M
let stage = balance(model, S)
assign stage[s] to gpus[pp = s] for s in 0..S
one_f_one_b(stage, M)
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of("gpt:350m,layers=2,batch=32,seq=128")


def simulated(text: str, graph: Graph, **params: int) -> tuple[Compiled, Report]:
    cluster = load_cluster("v100x32")
    compiled = compile_source(Source("p.ssp", text), graph, params, Path(), cluster)
    return compiled, simulate(compiled.program, compiled.source, cluster)


def said(text: str, graph: Graph, share: float, **params: int) -> tuple[Report, tuple[Diagnostic, ...]]:
    """What is said where the fullest device is filled to this share."""
    compiled, report = simulated(text, graph, **params)
    has = int(max(d.peak_bytes for d in report.devices) / share)
    report = replace(report, devices=tuple(replace(d, capacity_bytes=has) for d in report.devices))
    return report, capacity(compiled.program, compiled.source, report)


def with_figures(text: str, graph: Graph, has: int) -> Diagnostic:
    """What is said of these figures, which no constant of the simulator moves."""
    compiled, report = simulated(text, graph)
    parts = (("weights", 6 * GB), ("gradients", 6 * GB), ("optimizer", 12 * GB), ("activations", 42 * GB))
    devices = [replace(d, peak_bytes=66 * GB, peak_parts=parts, capacity_bytes=has) for d in report.devices]
    (found,) = capacity(compiled.program, compiled.source, replace(report, devices=tuple(devices)))
    return found


def peak(text: str, graph: Graph, **params: int) -> int:
    return max(d.peak_bytes for d in simulated(text, graph, **params)[1].devices)


def test_what_fits_is_no_news(graph: Graph) -> None:
    report, found = said(REPLICAS, graph, 0.9)
    assert found == () and report_json(report)["fits"]


def test_out_of_memory(graph: Graph, golden: Callable[[Path, str], None]) -> None:
    report, (found,) = said(REPLICAS, graph, 2.07)
    assert (found.code, found.severity) == ("E0614", "error") and not report_json(report)["fits"]
    golden(ERRORS / "E0614.err", render(with_figures(REPLICAS, graph, 34 * GB)) + "\n")


def test_nearly_full(graph: Graph, golden: Callable[[Path, str], None]) -> None:
    report, (found,) = said(STAGES, graph, 0.99)
    assert (found.code, found.severity) == ("E0615", "warning") and report_json(report)["fits"]
    golden(ERRORS / "E0615.err", render(with_figures(STAGES, graph, 67 * GB)) + "\n")


@pytest.mark.parametrize("plan", [REPLICAS, STAGES])
def test_the_change_does_what_it_says(graph: Graph, plan: str) -> None:
    """Each statement and each setting of the advice makes the peak smaller."""
    before = peak(plan, graph)
    (found,) = said(plan, graph, 1.8)[1]
    text = found.text(found.help)
    statements = re.findall(r"`(split model\.\w+ by row [^`]*|recompute model)`", text)
    settings = re.findall(r"--set (\w)=(\d+)", text)
    assert statements
    for statement in statements:
        assert peak(plan.replace("assign", f"{statement}\nassign", 1), graph) < before, statement
    for name, value in settings:
        assert peak(plan, graph, **{name: int(value)}) < before, name
    if plan is STAGES:
        assert {name for name, _ in settings} == {"M", "S"}
    else:
        (parts,) = re.findall(r"into \.\.\., m = (\d+)", text)
        assert peak(plan.replace("into dp", f"into dp, m = {parts}"), graph) < before


def test_a_schedule_that_keeps_all_micro_batches(graph: Graph) -> None:
    all_at_once = STAGES.replace("one_f_one_b", "gpipe")
    (found,) = said(all_at_once, graph, 1.5)[1]
    assert "`one_f_one_b(stage, M)` of `use pipeline`: it keeps 2 micro-batches, not all 4" in found.text(found.help)
    assert peak(STAGES, graph) < peak(all_at_once, graph)


def test_state_that_is_sharded_is_not_sharded_again(graph: Graph) -> None:
    sharded = REPLICAS.replace("assign", "split model.optimizer by row into dp\nassign")
    (found,) = said(sharded, graph, 1.5)[1]
    text = found.text(found.help)
    assert "split model.optimizer" not in text and "`split model.grads by row into dp`" in text


def test_json_says_by_how_much(graph: Graph) -> None:
    report, _ = said(REPLICAS, graph, 2.0)
    found = json.loads(json.dumps(report_json(report)))["devices"][0]
    assert found["over_bytes"] == found["peak_bytes"] - found["capacity_bytes"] > 0


def test_repeated_work(graph: Graph, golden: Callable[[Path, str], None]) -> None:
    idle = REPLICAS.replace("dp = D", "dp = D, tp = 2")
    (found,) = repeated_warnings(simulated(idle, graph)[0].program)
    assert (found.code, found.severity) == ("E0267", "warning")
    golden(ERRORS / "E0267.err", render(found) + "\n")
    split = idle.replace(
        "assign", "split model by heads into tp\nsplit model by ffn into tp\nsplit model by vocab into tp\nassign"
    )
    assert repeated_warnings(simulated(split, graph)[0].program) == ()
