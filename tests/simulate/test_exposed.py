"""Exposed communication: what devices wait for, with nothing else to run."""

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Overlap
from ssdsl.cluster.link import Link
from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.lower import lower
from ssdsl.lower.tasks.start_across_tasks import start_across_tasks
from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.report import DeviceReport, Report
from ssdsl.simulate.timeline import EventKind, Stream
from tests.simulate.steps import cluster_of, compiled, graph_of, step

SMALL = "gpt:tiny,layers=4,batch=16"
PLANS: dict[str, dict[str, int]] = {
    "data_parallel": {"D": 4},
    "tensor_parallel": {"T": 2},
    "half_batch": {"T": 2},
    "zero": {"D": 4, "Z": 2, "M": 2},
    "megatron": {"S": 2, "T": 2, "D": 2, "M": 4},
    "pipeline": {"S": 4, "M": 8},
    "interleaved": {"S": 2, "V": 2, "M": 4},
    "zero_bubble": {"S": 4, "M": 8},
    "context_parallel": {},
}
plans = pytest.mark.parametrize("plan", PLANS)


def slow(factor: float, **overlap: bool) -> Cluster:
    """V100s whose links are slower by a factor."""
    cluster = cluster_of("v100x32")

    def slower(link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth / factor)

    levels = tuple(replace(level, link=slower(level.link)) for level in cluster.levels)
    groups = tuple(
        replace(g, levels=tuple(replace(level, link=slower(level.link)) for level in g.levels)) for g in cluster.groups
    )
    return replace(cluster, levels=levels, groups=groups, overlap=Overlap(**overlap))


def simulated(plan: str, cluster: Cluster) -> Report:
    return step(compiled(plan, SMALL, **PLANS[plan]), cluster=cluster)


def of(device: DeviceReport, part: ExposedPart) -> float:
    return dict(device.exposed_parts)[part]


@plans
@pytest.mark.parametrize("factor", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("sends", [True, False])
def test_a_step_is_computing_exposed_communication_and_idle_time(plan: str, factor: float, sends: bool) -> None:
    adds_up(simulated(plan, slow(factor, sends=sends)))


@plans
def test_so_it_is_with_more_ranks_than_cores(plan: str) -> None:
    adds_up(simulated(plan, cluster_of("laptop")))


def adds_up(report: Report) -> None:
    for device in report.devices:
        idle_s = device.idle_share * report.step_s
        assert device.busy_s + device.exposed_s + idle_s == pytest.approx(report.step_s)
        assert 0 <= device.exposed_s <= device.communication_s * (1 + 1e-9) <= report.step_s * (1 + 2e-9)


@plans
def test_the_timeline_shows_what_is_exposed(plan: str) -> None:
    report = simulated(plan, slow(10.0))
    for row, device in enumerate(report.devices):
        drawn = [e for e in report.timeline.events if e.row == row and e.stream is Stream.COMPUTE]
        assert sum(e.communication_s for e in drawn) == pytest.approx(device.exposed_s)
        assert sum(x.time_s for x in report.timeline.exposed if x.row == row) == pytest.approx(device.exposed_s)
        waits = [e for e in drawn if e.kind is EventKind.EXPOSED]
        awaited = of(device, ExposedPart.MESSAGES) + of(device, ExposedPart.WEIGHTS)
        assert sum(e.communication_s for e in waits) == pytest.approx(awaited)


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ("data_parallel", "gradients"),
        ("tensor_parallel", "collectives"),
        ("zero", "gradients weights"),
        ("context_parallel", "collectives gradients"),
    ],
)
def test_each_kind_is_named(plan: str, parts: str) -> None:
    (device,) = simulated(plan, slow(1.0)).devices
    assert [part for part in ExposedPart if of(device, part)] == parts.split()


def test_a_pipeline_hides_messages_behind_other_micro_batches() -> None:
    """With faster links less is exposed; what is sent while a device computes is communication, and hidden."""
    reports = [simulated("zero_bubble", slow(factor)) for factor in (1.0, 10.0)]
    assert reports[0].exposed_s < reports[1].exposed_s
    assert all(report.exposed_s < report.communication_s for report in reports)


def test_a_sender_that_waits_is_exposed() -> None:
    hidden, shown = (simulated("pipeline", slow(1.0, sends=sends)).devices[0] for sends in (True, False))
    assert of(shown, ExposedPart.MESSAGES) > of(hidden, ExposedPart.MESSAGES)


def test_what_a_product_hides_is_communication() -> None:
    shown, hidden = (simulated("tensor_parallel", slow(1.0, products=p)).devices[0] for p in (False, True))
    assert shown.exposed_s == pytest.approx(shown.communication_s) == pytest.approx(hidden.communication_s)
    assert hidden.exposed_s < shown.exposed_s


def test_sums_are_hidden_behind_the_other_half_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is shorter by what is not exposed, but for what contention makes the computing slower; devices keep the
    values in both layouts meanwhile."""
    large = "gpt:tiny,layers=4,hidden=1024,heads=8,seq=512,batch=8"
    cluster = cluster_of("v100x32")
    hidden = step(compiled("half_batch", large, T=2), cluster=cluster)
    adds_up(hidden)
    passes = tuple(p for p in lower.PASSES if p is not start_across_tasks)
    monkeypatch.setattr(lower, "PASSES", passes)
    found = compile_plan(plan_path("half_batch"), graph_of(large), {"T": 2})
    awaited = step(found, cluster=cluster)
    assert hidden.exposed_s < 0.5 * awaited.exposed_s
    assert hidden.step_s < awaited.step_s
    assert hidden.peak_bytes >= awaited.peak_bytes
    sent = [sum(traffic.size_bytes for traffic in report.traffic) for report in (hidden, awaited)]
    assert sent[0] == sent[1]
    waits = [event for event in hidden.timeline.events if event.kind is EventKind.TRANSFER]
    assert {event.stream for event in waits} == {Stream.TRANSFER}
