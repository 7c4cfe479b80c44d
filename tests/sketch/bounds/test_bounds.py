"""A bound is never crossed: no simulated step is faster, and no peak smaller, than a plan's text promises at least."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from ssdsl.analyse.state import MIXED
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.ir.function import Backward
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lower.lower import formed
from ssdsl.lower.stages import Planned
from ssdsl.plan.interpret import read_plan
from ssdsl.plan.plan import HALVES
from ssdsl.record import replace
from ssdsl.simulate.report import DeviceReport
from ssdsl.sketch.bounds.bounds import Bounds, HeldBytes
from ssdsl.sketch.bounds.task_bounds import _by_assignment, has_orders, least_of, unordered
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of
from tests.examples.test_papers import PLANS as PAPER_MODELS

ROOT = Path(__file__).parents[3]
CLUSTERS = ("a100x64", "two_sites", "laptop")
PLANS = (*sorted((ROOT / "examples").glob("*.ssp")), *sorted((ROOT / "tests/prove/plans").glob("*.ssp")))
PAPERS = {path.stem: path for path in sorted((ROOT / "examples/papers").glob("*.ssp"))}
SETTINGS: tuple[dict[str, int], ...] = (
    {},
    {"R": 1, "M": 2},
    {"M": 8},
    {"D": 2, "M": 2},
    {"S": 2, "M": 4},
    {"T": 2, "S": 1, "M": 1},
)


def fullest(devices: Sequence[HeldBytes] | Sequence[DeviceReport]) -> float:
    """The largest share of its memory that a device needs."""
    sizes = [(d.size_bytes if isinstance(d, HeldBytes) else d.peak_bytes, d.capacity_bytes) for d in devices]
    return max(size / capacity for size, capacity in sizes if capacity)


@pytest.mark.covering
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_bounds_hold(cluster: str, settings: dict[str, int]) -> None:
    plans = bounds_hold("gpt:tiny", cluster, settings)
    assert plans > (0 if settings else 10)  # few have all of the params


@pytest.mark.slow
@pytest.mark.parametrize("model", ["swin:tiny", "t5:tiny", "mixtral:tiny", "alphafold2:tiny"])
def test_bounds_hold_for_other_models(model: str) -> None:
    assert sum(bounds_hold(model, cluster, settings) for cluster, settings in product(CLUSTERS, SETTINGS)) > 10


@pytest.mark.parametrize("settings", [{"M": 2}, {"S": 1, "T": 2}], ids=str)
def test_bounds_hold_where_a_stage_is_of_several_assignments(settings: dict[str, int]) -> None:
    """The scores run with the last layers as one task, although another `assign` places them."""
    assert bounds_hold("t5:tiny", "laptop", settings, [PAPERS["mbart_megatron"]]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("plan", list(PAPERS))
def test_bounds_hold_for_the_plans_of_papers(plan: str) -> None:
    model = PAPER_MODELS[plan][0] if plan in PAPER_MODELS else f"{plan.partition('_')[0].replace('mbart', 't5')}:tiny"
    assert sum(bounds_hold(model, on, settings, [PAPERS[plan]]) for on, settings in product(CLUSTERS, SETTINGS))


@pytest.mark.parametrize("plan", ["tensor_parallel", "megatron"])
def test_bounds_hold_where_an_axis_is_divided(plan: str) -> None:
    """Two heads of keys over four devices."""
    plans = [ROOT / "examples" / f"{plan}.ssp"]
    assert bounds_hold("llama:tiny", "a100x64", {"T": 4} | ({"S": 1, "M": 2} if plan == "megatron" else {}), plans) == 1


def bounds_hold(model: str, on: str, settings: dict[str, int], plans: Sequence[Path] = PLANS) -> int:
    """How many plans can be simulated with these settings; asserts that the bounds of each hold."""
    graph, cluster = graph_of(model), load_cluster(on)
    workspace, bounds = Workspace(graph, cluster), Bounds(graph, cluster, MIXED)
    seen = 0
    for path in plans:
        source = read_source(path)
        script = parse(source)
        try:
            reading = read_plan(script, workspace.model, settings, path.parent)
            candidate = workspace.formed(reading)
            report = workspace.simulate(candidate, cluster)
        except PlanError:
            continue
        plan, seen = reading.plan, seen + 1
        without = read_plan(script, workspace.model, settings, path.parent, orders=False)
        halved = any(tasks.phase in HALVES for tasks in plan.ordered())
        where = f"{path.name} {settings} on {cluster.name}"
        assert without.context.facts.halved >= halved, where
        assert bounds.of(without.plan, without.context.facts.halved).step_s <= report.step_s * (1 + 1e-9), where
        assert fullest(bounds.of(plan, False).memory) <= fullest(report.devices) * (1 + 1e-9), where
        hides = has_orders(script)
        least = least_of(without.plan, cluster, MIXED, without.context.facts.halved, hides=hides)
        assert least.step_s <= report.step_s * (1 + 1e-9), where
        assert fullest(least.memory) <= fullest(report.devices) * (1 + 1e-9), where
    return seen


@pytest.mark.parametrize("saving", ["sequence_parallel(model)", "recompute model"])
def test_halves_of_backwards_keep_what_a_whole_one_makes_again(saving: str) -> None:
    text = (
        "use pipeline: zb_h1\nuse tensor_parallel: tensor_parallel\nuse sequence_parallel: sequence_parallel\n"
        "mesh gpus(pp = 1, tp = 4)\nsplit model by batch into m = 2\ntensor_parallel(model)\n"
        f"{saving}\nlet stage = balance(model, 1)\nassign stage[0] to gpus[pp = 0]\nzb_h1(stage, 2)\n"
    )
    cluster, script = load_cluster("rtxtitanx8"), parse(Source("plan.ssp", text))
    workspace = Workspace(graph_of("gpt:tiny"), cluster)
    report = workspace.simulate(workspace.formed(read_plan(script, workspace.model)), cluster)
    without = read_plan(script, workspace.model, orders=False)
    least = least_of(without.plan, cluster, MIXED, without.context.facts.halved)
    assert least.step_s <= report.step_s and fullest(least.memory) <= fullest(report.devices)


@pytest.mark.parametrize("name", ["zero", "megatron", "v_shaped", "co_shard"])
def test_functions_with_backwards_in_halves_are_those_of_a_plan_that_names_the_halves(name: str) -> None:
    cluster, path = load_cluster("a100x64"), ROOT / f"examples/{name}.ssp"
    reading = read_plan(parse(read_source(path)), Workspace(graph_of("gpt:tiny")).model, {}, path.parent, orders=False)
    whole = unordered(reading.plan, dict.fromkeys(reading.plan.operators, 0), cluster, MIXED)
    halved = whole.halved().lowering
    assert {f.backward for f in halved.functions} & {Backward.HALVES} and halved.functions != whole.lowering.functions
    anew = formed(Planned(replace(whole.lowering.plan, clocks=halved.plan.clocks), cluster))
    for part in ("functions", "prologues", "messages", "params", "flats", "losses"):
        assert getattr(halved, part) == getattr(anew, part)


def test_each_stage_has_the_memory_of_its_own_devices() -> None:
    """The first, which has most of the model, is on devices of 79 GiB, the second on devices of 32."""
    text = 'mesh gpus(pp = 2, n = 32)\nlet head = model["lm_head"]\nassign model - head to gpus[pp = 0, n = 0]\n'
    text += "assign head to gpus[pp = 1, n = 0]\n"
    script, cluster = parse(Source("plan.ssp", text)), load_cluster("two_sites")
    workspace = Workspace(graph_of("llama:tiny,batch=1,seq=2"), cluster)
    reading = read_plan(script, workspace.model)
    share = fullest(workspace.simulate(workspace.formed(reading), cluster).devices)
    assert fullest(Bounds(workspace.graph, cluster, MIXED).of(reading.plan, False).memory) <= share
    assert fullest(least_of(reading.plan, cluster, MIXED, False).memory) <= share


@pytest.mark.thinned(6)
@pytest.mark.parametrize("micro_batches", [2, 8])
def test_bounds_hold_where_latencies_overlap(micro_batches: int) -> None:
    """A trip to the last stage is in the bound once, not once for each micro-batch."""
    graph, cluster = graph_of("gpt:tiny,layers=4,batch=8"), far(load_cluster("a100x64"), 1.0)
    workspace, bounds = Workspace(graph, cluster), Bounds(graph, cluster, MIXED)
    for name in ("pipeline", "zero_bubble", "interleaved", "v_shaped"):
        path = ROOT / f"examples/{name}.ssp"
        script, settings = parse(read_source(path)), {"S": 2, "M": micro_batches}
        reading = read_plan(script, workspace.model, settings, path.parent)
        step_s = workspace.simulate(workspace.formed(reading), cluster).step_s
        without = read_plan(script, workspace.model, settings, path.parent, orders=False)
        halved = without.context.facts.halved
        least_s = least_of(without.plan, cluster, MIXED, halved).step_s
        assert 1 < least_s <= step_s * (1 + 1e-9)
        assert bounds.of(without.plan, halved).step_s <= step_s * (1 + 1e-9)
        if name == "pipeline":
            assert least_s == pytest.approx(step_s, abs=0.1)


def far(cluster: Cluster, latency: float) -> Cluster:
    """The cluster with this latency, in seconds, for every message."""
    groups = [
        replace(g, levels=tuple(replace(x, link=replace(x.link, send_latency=latency)) for x in g.levels))
        for g in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups))


ONLY = """
param D = 4
mesh gpus(dp = D)
split model by batch into dp
split model.{state} by row into dp
assign model to gpus
"""


@pytest.mark.parametrize("state", ["weights", "grads", "optimizer"])
def test_what_lies_in_parts_with_a_state(state: str) -> None:
    """With weights lie their gradients and what the optimizer keeps, as in ZeRO."""
    graph, cluster = graph_of("gpt:tiny"), load_cluster("a100x64")
    workspace, bounds = Workspace(graph, cluster), Bounds(graph, cluster, MIXED)
    candidate = workspace.candidate(Source("x.ssp", ONLY.format(state=state)), {})
    peak = fullest(workspace.simulate(candidate, cluster).devices)
    assert 0.2 * peak < fullest(bounds.of(candidate.plan, False).memory) <= peak


def test_the_bubble_of_a_pipeline_is_in_the_bound() -> None:
    graph, cluster = graph_of("gpt:tiny"), load_cluster("a100x64")
    workspace, bounds = Workspace(graph, cluster), Bounds(graph, cluster, MIXED)
    path = ROOT / "examples/pipeline.ssp"
    script = parse(read_source(path))

    def bound(micro_batches: int) -> float:
        plan = read_plan(script, workspace.model, {"S": 4, "M": micro_batches}, path.parent).plan
        return bounds.of(plan, False).step_s

    assert bound(1) > 1.5 * bound(8)


@pytest.mark.slow
def test_the_nearer_bound_counts_what_the_first_backward_needs_beside_parts_without_one() -> None:
    """Of AlphaFold's three passes only the last goes back."""
    path, cluster = ROOT / "examples/papers/sketch_passes.ssp", load_cluster("a100x64")
    model = Workspace(graph_of("alphafold2:tiny,blocks=1")).model
    plan = read_plan(parse(read_source(path)), model, {"M": 2}, path.parent, orders=False).plan
    found = unordered(plan, _by_assignment(plan), cluster, MIXED)
    own = found.program.functions
    needs = [min(found.working_bytes(f)) for f in own if f.backward is not Backward.NONE]
    assert len(needs) < len(own) and min(needs) > 0
    (held,) = least_of(plan, cluster, MIXED, False).memory
    kept = sum(map(found.kept_bytes, own)) + found.state_bytes(0) + found.input_bytes(0)
    assert held.size_bytes == kept + min(needs)
