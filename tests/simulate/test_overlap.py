"""What a stack does at the same time, as a cluster's file says it."""

from pathlib import Path

import pytest

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import CONTENTION, Overlap
from ssdsl.cluster.load import cluster_file, load_cluster, read_cluster_file
from ssdsl.ir.program import Compute
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.network import Network
from ssdsl.simulate.price.roofline import Roofline
from ssdsl.simulate.report import DeviceReport
from tests.simulate.steps import cluster_of, compiled, step

LAYERS = "models.py:three_layers"


def stack(name: str = "a100x1024", contention: float = 0.0, **overlap: bool) -> Cluster:
    cluster = cluster_of(name)
    groups = tuple(replace(g, device=replace(g.device, contention=contention)) for g in cluster.groups)
    return replace(cluster, groups=groups, overlap=Overlap(**overlap))


def first(plan: str, cluster: Cluster, **params: int) -> DeviceReport:
    return step(compiled(plan, LAYERS, meta=True, **params), cluster=cluster).devices[0]


def test_a_sender_waits() -> None:
    """The first of two stages sends four micro-batches: each holds it up for as long as it travels."""
    found = compiled("pipeline", LAYERS, meta=True, S=2, M=4)
    hidden, shown = (step(found, cluster=stack(sends=sends)) for sends in (True, False))
    journey_s = Network(stack()).message(found.program.messages[0], False).time_s
    slower = shown.step_s - hidden.step_s
    assert shown.devices[0].compute_s == hidden.devices[0].compute_s
    assert 3 * journey_s * (1 - 1e-9) <= slower <= 2 * 4 * journey_s * (1 + 1e-9)


def test_gradients_are_reduced_behind_the_last_task() -> None:
    hidden, shown = (first("megatron", stack(gradients=g), D=2, S=2, T=1, M=2) for g in (True, False))
    assert shown.exposed_s >= hidden.exposed_s and shown.compute_s == hidden.compute_s
    assert shown.communication_s == pytest.approx(hidden.communication_s)


@pytest.mark.parametrize("plan", ["tensor_parallel", "sequence_parallel"])
def test_products_hide_what_their_backward_exchanges(plan: str) -> None:
    """No more is hidden than the gradients of weights, or of inputs, take; forward is as before."""
    program = compiled(plan, LAYERS, meta=True, T=4).program
    indices = (ProgramIndex(program, True, overlaps_products=overlaps) for overlaps in (False, True))
    shown, hidden = (Roofline(index, stack(), Fusion(index)) for index in indices)
    (role,) = program.roles
    tasks = {a.phase: a for a in role.actions if isinstance(a, Compute)}
    for phase, less in ((Phase.FORWARD, False), (Phase.BACKWARD, True)):
        before, after = (costs.of(tasks[phase], role) for costs in (shown, hidden))
        assert (after.communication_s < before.communication_s) is less
        assert after.compute_s == before.compute_s and after.sent == before.sent
        assert after.communication_s > 0


@pytest.mark.parametrize("plan", ["tensor_parallel", "sequence_parallel"])
def test_products_are_slower_beside_what_they_hide(plan: str) -> None:
    """By a fifth of the time that is hidden, if contention is a quarter."""
    program = compiled(plan, LAYERS, meta=True, T=4).program
    index = ProgramIndex(program, True, overlaps_products=True)
    alone, beside = (Roofline(index, stack(contention=c), Fusion(index)) for c in (0.0, 0.25))
    (role,) = program.roles
    task = next(a for a in role.actions if isinstance(a, Compute) and a.phase is Phase.BACKWARD)
    before, after = alone.of(task, role), beside.of(task, role)
    assert after.compute_s - before.compute_s == pytest.approx(after.hidden_s / 5) and after.hidden_s > 0
    assert after.hidden_s + after.communication_s == pytest.approx(before.hidden_s + before.communication_s)


def test_pipelines_compute_longer_beside_their_messages() -> None:
    """No longer than if all communication lay beside computing; and a step with nothing beside it is as before."""
    found = compiled("pipeline", LAYERS, meta=True, S=2, M=4)
    alone, beside = (step(found, cluster=stack(contention=c)) for c in (0.0, 0.5))
    for before, after in zip(alone.devices, beside.devices, strict=True):
        assert 0 < after.compute_s - before.compute_s <= after.communication_s / 3
    found = compiled("tensor_parallel", LAYERS, meta=True, T=4)
    alone, beside = (step(found, cluster=stack(contention=c)) for c in (0.0, 0.5))
    assert alone.step_s == beside.step_s


def test_contention_of_a_file(tmp_path: Path) -> None:
    """What the file says, or else that of GPUs, and none where ranks share cores."""
    text = read_cluster_file(cluster_file("v100x32"), "v100x32").text
    (line,) = (line for line in text.splitlines() if line.startswith("contention"))
    stated, silent = tmp_path / "stated.toml", tmp_path / "silent.toml"
    stated.write_text(text.replace(line, "contention = 0.4"))
    silent.write_text(text.replace(line, ""))
    assert [load_cluster(str(file)).device(0).contention for file in (stated, silent)] == [0.4, CONTENTION]
    assert load_cluster("laptop").device(0).contention == 0.0


def test_a_file_says_it(tmp_path: Path) -> None:
    file = tmp_path / "stack.toml"
    text = read_cluster_file(cluster_file("v100x32"), "v100x32").text
    file.write_text(f"overlap = {{ sends = false, products = true }}\n{text}")
    assert load_cluster(str(file)).overlap == Overlap(sends=False, gradients=True, products=True)
    assert load_cluster("v100x32").overlap == Overlap()
