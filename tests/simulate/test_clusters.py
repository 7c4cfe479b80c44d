"""Steps on clusters: unlike devices, slow links, and too few devices."""

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from tests.simulate.steps import cluster_of, compiled, step

LARGE = "gpt:350m,layers=2,batch=256,dtype=fp16"
CHAIN = "gpt:tiny,layers=4,hidden=256,seq=128,batch=64"


def without_latency(cluster: Cluster) -> Cluster:
    """Links that cost nothing, so that only computing shows."""
    groups = tuple(
        replace(g, levels=tuple(replace(x, link=replace(x.link, bandwidth=1e18, latency=0.0)) for x in g.levels))
        for g in cluster.groups
    )
    levels = tuple(replace(x, link=replace(x.link, bandwidth=1e18, latency=0.0)) for x in cluster.levels)
    return replace(cluster, groups=groups, levels=levels)


def test_the_slowest_device_sets_the_pace() -> None:
    """64 replicas over an A100 and a V100 site take no less than on either alone."""
    mixed = without_latency(cluster_of("two_sites"))
    slow = without_latency(cluster_of("v100x32"))
    (half,) = step(compiled("data_parallel", LARGE, meta=True, D=32), cluster=mixed).devices
    (both,) = step(compiled("data_parallel", LARGE, meta=True, D=64), cluster=mixed).devices
    twice = replace(slow, groups=slow.groups * 2)
    (v100,) = step(compiled("data_parallel", LARGE, meta=True, D=64), cluster=twice).devices
    (a100,) = step(
        compiled("data_parallel", LARGE, meta=True, D=64), cluster=without_latency(cluster_of("a100x64"))
    ).devices
    assert both.compute_s >= max(a100.compute_s, v100.compute_s) * (1 - 1e-9)
    assert both.compute_s < 1.1 * max(a100.compute_s, v100.compute_s) and both.capacity_bytes == v100.capacity_bytes
    assert half.device == "A100 SXM" and both.device == "A100 SXM, V100 SXM"
    (full,) = step(compiled("data_parallel", LARGE, meta=True, D=32), cluster=slow).devices
    assert half.compute_s < full.compute_s and half.capacity_bytes > full.capacity_bytes


def test_a_stage_on_slower_devices_takes_longer_and_the_line_between_counts() -> None:
    report = step(compiled("wide_pipeline", CHAIN, D=32, S=2, M=2), cluster="two_sites")
    first, second = report.devices
    assert (first.device, second.device) == ("A100 SXM", "V100 SXM")
    assert second.compute_s > first.compute_s
    assert {t.level for t in report.traffic if t.kind == "send"} == {"wide area"}
    near = step(compiled("wide_pipeline", CHAIN, D=32, S=2, M=2))
    assert near.step_s < report.step_s - 2 * 30e-3  # there and back again


def test_cores_are_shared() -> None:
    """More ranks than a laptop has cores take turns; a cluster of GPUs has no more than it has."""
    laptop = cluster_of("laptop")
    few, many = compiled("data_parallel", CHAIN, D=laptop.size), compiled("data_parallel", CHAIN, D=4 * laptop.size)
    one, shared = step(few, cluster=laptop).devices[0], step(many, cluster=laptop).devices[0]
    assert shared.compute_s == pytest.approx(one.compute_s, rel=0.2)  # a quarter of the work at a quarter of the pace
    assert shared.capacity_bytes is not None and one.capacity_bytes is not None
    assert shared.capacity_bytes == pytest.approx(one.capacity_bytes / 4)
    with pytest.raises(PlanError) as raised:
        step(compiled("data_parallel", CHAIN, D=16), cluster="h200x8")
    assert [d.code for d in raised.value.diagnostics] == ["E0610"]
