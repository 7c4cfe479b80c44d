"""State and activations in the memory of the host: the same steps, and device memory without them."""

from math import prod
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.model.graph import Origin
from ssdsl.record import replace
from ssdsl.runtime.options import Training
from ssdsl.show.advice.capacity import capacity
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=8,vocab=31"
LARGE = "gpt:350m,layers=2"
BASE = "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n"
HOST = "assign model.optimizer to host\n"
STAGES = """
use pipeline: zb_h1
mesh gpus(pp = 2, tp = 2)
split model by batch into m = 4
split model by heads into tp
split model by ffn into tp
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
zb_h1(stage, 4)
"""
ZERO = BASE + "split model.weights by row into dp\n"
NODES = """
mesh gpus(node = 2, dp = 2)
split model by batch into node, dp
split model.weights by row into dp
assign model to gpus
"""
TIED = """
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 2
split model.weights by row into dp
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""
PLANS = {
    "copies": BASE + HOST,
    "ZeRO-1": BASE + "split model.optimizer by row into dp\n" + HOST,
    "ZeRO-2": BASE + "split model.grads by row into dp\n" + HOST,
    "ZeRO-3": BASE + "split model.weights by row into dp\n" + HOST,
    "layers": BASE + 'assign model["h.*"].optimizer to host\n',
    "weights": ZERO + "assign model.weights to host\nprefetch model.weights by 2\n",
    "weights of layers": ZERO + 'assign model["h.*"].weights to host\nassign model.optimizer to host\n',
    "weights that stay": ZERO + "keep model.weights through m in backward\nassign model.weights to host\n",
    "weights of a node": NODES + "assign model.weights to host\n",
    "weights of two stages": TIED + "assign model.weights to host\n",
    "activations": BASE + 'assign model["h.*"].activations to host\n',
    "activations of products": BASE + "split model.weights by row into dp\nassign model.addmm.activations to host\n",
    "activations in halves": STAGES + "assign model.activations to host\n",
    "beside what is recomputed": BASE + 'recompute model["h.0"]\nassign model.activations to host\n',
    "matrices": BASE + "split model.optimizer by matrix into dp\n" + HOST,
}


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
def test_updates_on_the_host_are_those_of_one_device(plan: str) -> None:
    found = try_plan(*captured(GPT), PLANS[plan], Training(2, optimizer="adamw", clip=0.5))
    assert found.kind == "equal", found.text


def step(text: str, cluster: str = "a100x1024") -> tuple[dict[str, int], int, float]:
    found = compile_source(Source("plan.ssp", text), graph_of(LARGE, True), {}, Path())
    report = simulate(found.program, found.source, load_cluster(cluster))
    (device,) = report.devices
    return dict(device.peak_parts), device.host_bytes, device.optimizer_s


def test_the_device_has_no_state_of_the_optimizer() -> None:
    """Two moments of four bytes, what is stepped on, and its gradient are on the host; the update takes as long as the
    link carries gradients and weights, and the host reads and writes the state of two devices."""
    weights = sum(prod(value.shape) for value in graph_of(LARGE, True).of(Origin.WEIGHT))
    there, nothing, _ = step(BASE)
    parts, host, optimizer_s = step(BASE + HOST)
    assert nothing == 0 and there["optimizer"] == pytest.approx(8 * weights, rel=1e-3)
    assert "optimizer" not in parts
    assert host == pytest.approx(16 * weights, rel=1e-3)
    assert optimizer_s == pytest.approx(8 * weights / 25e9 + 2 * 28 * weights / 409e9, rel=0.01)


def test_weights_on_the_host_are_gathered_from_there() -> None:
    """Of the state, the device has the gradient of its part alone; the host has what the optimizer's state and the
    weight need, and the link carries gradients once and each weight once forward and once backward."""
    weights = sum(prod(value.shape) for value in graph_of(LARGE, True).of(Origin.WEIGHT))
    there, _, _ = step(ZERO + HOST)
    parts, host, optimizer_s = step(ZERO + "assign model.weights to host\n")
    assert there["weights"] == pytest.approx(4 * weights / 2, rel=1e-2)
    assert "weights" not in parts and "optimizer" not in parts
    assert host == pytest.approx(16 * weights / 2, rel=1e-2)
    assert optimizer_s == pytest.approx(4 * weights / 2 / 25e9 + 28 * weights / 409e9, rel=0.02)


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (BASE, "split model.weights by row into dp"),
        (BASE + "split model.grads by row into dp\n", "split model.weights by row into dp"),
        (ZERO + "split model.optimizer by matrix into dp\n", "assign `model.optimizer` to host"),
    ],
)
def test_weights_that_are_not_gathered_stay_on_the_device(plan: str, line: str) -> None:
    with pytest.raises(PlanError) as caught:
        step(plan + "assign model.weights to host\n")
    (mistake,) = caught.value.diagnostics
    assert mistake.code == "E0405" and line in mistake.text(mistake.help)


def test_a_host_that_is_too_small_is_told(tmp_path: Path) -> None:
    """Of a cluster whose hosts have a gigabyte."""
    cluster = load_cluster("a100x1024")
    (group,) = cluster.groups
    assert group.host is not None
    small = replace(cluster, groups=(replace(group, host=replace(group.host, memory_bytes=10**9)),))
    found = compile_source(Source("plan.ssp", BASE + HOST), graph_of(LARGE, True), {}, Path())
    (told,) = capacity(found.program, found.source, simulate(found.program, found.source, small))
    assert told.code == "E0617" and "1.28 GB" in str(told)


def test_a_cluster_without_hosts_is_refused() -> None:
    with pytest.raises(PlanError, match="E0616"):
        step(BASE + HOST, "p3x64")
