"""No plan on no cluster reaches more than the devices' peak, and a device that does nothing but its products reaches
it."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.model.products import step_flops
from ssdsl.record import replace
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.model.test_products import PLAIN
from tests.simulate.steps import cluster_of, compiled, step
from tests.simulate.test_clusters import without_latency

ONE = "mesh gpus(dp = 1)\nassign model to gpus\n"
FROZEN = ("lora", "first frozen", "middle frozen", "queries alone", "values alone", "einsums", "convolutions")
CLUSTERS = ("h200x8", "a100x8", "v100x8", "two_sites", "laptop", "p3x64", "rtxtitanx8")
PLANS: list[tuple[str, str, Mapping[str, int]]] = [
    ("gpt:tiny,layers=4", "data_parallel", {"D": 4}),
    ("gpt:tiny,layers=4", "megatron", {"S": 2, "T": 2, "M": 4, "R": 1}),
    ("gpt:tiny,layers=4", "zero", {"D": 4, "M": 2, "R": 1}),
    ("gpt:tiny,layers=4", "zero_bubble", {"S": 4, "M": 8}),
    ("gpt:tiny,layers=4", "v_shaped", {"S": 2, "M": 4}),
    ("gpt:tiny,layers=4", "context_parallel", {"C": 4}),
    ("gpt:tiny,layers=4", "context_parallel", {"C": 2, "ends": 0, "ring": 0}),
    ("llama:tiny", "tensor_parallel", {"T": 2}),
    ("mixtral:tiny", "experts", {"E": 2}),
    ("mixtral:tiny", "data_parallel", {"D": 2}),
    ("swin:tiny", "zero", {"D": 2}),
    ("mbart:tiny", "data_parallel", {"D": 2}),
    ("unet3d", "spatial", {"D": 2, "H": 2}),
]


def at_peak(device: Device) -> Device:
    """The device, with kernels that take the time of their arithmetic at its peak, and no other."""
    free = replace(device, memory_bandwidth=1e24, compute_efficiency=1.0, memory_efficiency=1.0, launch_s=0.0)
    return replace(free, processors=1, tile_s=0.0, attention_efficiency=None)


def ideal(cluster: Cluster) -> Cluster:
    """The cluster with devices at their peak, and links that cost nothing."""
    groups = tuple(replace(group, device=at_peak(group.device)) for group in cluster.groups)
    return without_latency(replace(cluster, groups=groups))


def on_one_device(name: str, cluster: Cluster) -> Report:
    """A step of a plain model of `test_products.py` on one device."""
    module, batch = PLAIN[name]
    graph = capture(Model(name, module(), ({"x": batch()},), {"x": ()}))
    found = compile_source(Source("one.ssp", ONE), graph, {}, None)
    return simulate(found.program, found.source, cluster)


def mfu_of(report: Report) -> float:
    assert report.mfu is not None
    return report.mfu


@pytest.mark.parametrize(("spec", "plan", "params"), PLANS)
def test_no_plan_reaches_more_than_the_peak(spec: str, plan: str, params: Mapping[str, int]) -> None:
    found = compiled(plan, spec, **params)
    for name in CLUSTERS:
        cluster = cluster_of(name)
        real, best = (mfu_of(step(found, cluster=c)) for c in (cluster, ideal(cluster)))
        assert 0 < real <= best <= 1 + 1e-9, name


@pytest.mark.parametrize("name", FROZEN)
def test_one_device_that_only_computes_products_reaches_its_peak(name: str) -> None:
    """What is frozen, or needs no gradient, is in neither the count nor the time. A kernel of attention computes scores
    again in backward: two products in nine of its own."""
    best = mfu_of(on_one_device(name, ideal(cluster_of("h200x8"))))
    assert best == pytest.approx(1.0, abs=1e-9 if "alone" not in name else 0.05) and best <= 1 + 1e-9
    assert mfu_of(on_one_device(name, cluster_of("h200x8"))) < best


def test_the_count_does_not_depend_on_the_plan() -> None:
    """Recomputed work, copies of it on several devices, and rows that travel to experts."""
    for spec in ("gpt:tiny,layers=4", "mixtral:tiny"):
        plans = [(plan, params) for own, plan, params in PLANS if own == spec]
        counts = {step(compiled(plan, spec, **params)).model_flops for plan, params in plans}
        assert len(counts) == 1 and len(plans) > 1


class Mixed(nn.Module):
    """A product of 16 bits, and one of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(64, 64, dtype=torch.bfloat16), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.high(self.low(x.bfloat16()).float()).square().mean()


@cache
def mixed() -> Graph:
    return capture(Model("mixed", Mixed(), ({"x": torch.randn(8, 64)},), {"x": ()}))


SITES = """about = "two devices, each fast in one dtype"
{devices}
[[nodes]]
device = "first"
count = 1
devices = 1

[[nodes.levels]]
name = "node"
bandwidth_gb_s = 10
latency_us = 1
source = "made up"

[[nodes]]
device = "second"
count = 1
devices = 1

[[nodes.levels]]
name = "node"
bandwidth_gb_s = 10
latency_us = 1
source = "made up"

[[levels]]
name = "network"
bandwidth_gb_s = 1
latency_us = 1
source = "made up"
"""
DEVICE = """
[devices.{name}]
name = "{name}"
peak_tflops = {{ float32 = {high}, bfloat16 = {low} }}
memory_gib = 16
memory_bandwidth_gb_s = 1000
compute_efficiency = 1
memory_efficiency = 1
launch_us = 0.001
source = "made up"
"""


def test_products_of_two_dtypes_count_by_their_peaks() -> None:
    """On a device that computes the ones sixteen times as fast as the others, a step of the products alone reaches the
    peak; the sum of both by either peak is no share of it."""
    assert step_flops(mixed()) == {"bfloat16": 2 * 2 * 8 * 64 * 64, "float32": 3 * 2 * 8 * 64 * 64}
    found = compile_source(Source("one.ssp", ONE), mixed(), {}, None)
    cluster = ideal(cluster_of("h200x8"))
    assert cluster.device(0).peak_flops("bfloat16") > 10 * cluster.device(0).peak_flops("float32")
    assert mfu_of(simulate(found.program, found.source, cluster)) == pytest.approx(1.0)


def test_devices_that_differ_count_a_dtype_by_its_least_worth(tmp_path: Path) -> None:
    """Each product runs where it is fast. By the sums of the devices' peaks the step would reach 182 % of them."""
    devices = DEVICE.format(name="first", high=1, low=10) + DEVICE.format(name="second", high=10, low=1)
    (tmp_path / "sites.toml").write_text(SITES.format(devices=devices))
    cluster = ideal(load_cluster(str(tmp_path / "sites.toml")))
    text = 'mesh gpus(pp = 2)\nassign model["low"] to gpus[pp = 0]\nassign model - model["low"] to gpus[pp = 1]\n'
    found = compile_source(Source("sites.ssp", text), mixed(), {}, None)
    report = simulate(found.program, found.source, cluster)
    flops = step_flops(mixed())
    assert sum(count / 11e12 for count in flops.values()) > report.step_s * 0.9
    assert 0 < mfu_of(report) <= 1
