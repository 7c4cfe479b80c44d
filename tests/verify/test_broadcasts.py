"""What devices of several hosts need leaves its sender once, and is passed on from host to host."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import Program
from ssdsl.ir.text.program import program_text
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.runtime.ranks.world import AwaitedMessage, World
from ssdsl.runtime.step.provenance import Sites
from ssdsl.show.tables.communication import communications
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.captured import captured
from tests.simulate.steps import traffic
from tests.verify.conftest import Program as Written
from tests.verify.host_to_host import ADAPTER, CASES, HOSTS, End, of_bound, plan_of
from tests.verify.test_routes import CUBE, compiled, crossing

SGD = Training(2, optimizer="sgd", lr=0.02)
SIZE = 48 * 8 * 8
ENDS = {
    "case 7, 8": CASES["7, 8"],
    "a host each": (End(1, 1, {}), End(2, 1, {})),
    "of a part each": (End(2, 2, {"i": "hd"}), End(3, 2, {"j": "d"})),
}


def hosts_of(devices: int) -> Cluster:
    """Hosts of so many devices without latencies, so that small tensors travel as large ones do."""
    (group,) = HOSTS.groups
    host, net = (replace(level, link=replace(level.link, latency=0.0)) for level in group.levels)
    shared = replace(net.link, bandwidth=ADAPTER / devices)
    return replace(HOSTS, groups=(replace(group, levels=(replace(host, size=devices), replace(net, link=shared))),))


FAST = hosts_of(4)


def transfer(program: Program) -> Transfer:
    (found,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    return found


@pytest.mark.parametrize("name", CASES)
def test_bound(name: str) -> None:
    routed, plain = of_bound(name)
    assert 1 <= routed < 1.05 < plain or (name == "4" and 1 <= routed <= plain < 1.05)


@pytest.mark.parametrize("name", ENDS)
def test_each_host_gets_each_element_once(name: str) -> None:
    source, target = ENDS[name]
    text, cluster = plan_of(source, target), hosts_of(source.devices)
    program = compiled(CUBE, text, cluster)
    message = transfer(program)
    assert message.forward.broadcast and ", broadcast\n" in program_text(program)
    entered = crossing(message.forward, message.source, message.target, cluster)
    assert {*entered.values()} == {SIZE} and len(entered) == target.hosts
    assert try_plan(*captured(CUBE), text, SGD, cluster).kind == "equal"
    assert str(compiled(CUBE, text, replace(cluster, routes=False))) == str(compiled(CUBE, text, None))


def test_views_and_traffic_say_what_ranks_count() -> None:
    model, _ = captured(CUBE)
    text = plan_of(*CASES["7, 8"])
    program = compiled(CUBE, text, FAST)
    (shown,) = (c for c in communications(program) if c.kind == "broadcast")
    assert (shown.calls, shown.size_bytes) == (1, 4 * SIZE // 4)
    report = simulate(program, Source("plan.ssp", text), FAST)
    by_level = {t.level: t.size_bytes for t in report.traffic if t.kind == "broadcast"}
    assert by_level == {"ethernet": 2 * 4 * SIZE, "host": 6 * 4 * SIZE}  # eight devices get it, one of each host first
    counts = run_in_process(program_of(program, model), Training(1)).counts
    counted = [kinds[kind]["bytes"] for kinds in counts.values() for kind in kinds if kind in ("send", "broadcast")]
    assert sum(counted) == sum(size for kind, (_, size) in traffic(report).items() if kind in ("send", "broadcast"))


def test_processes(program: Callable[..., Written], tmp_path: Path) -> None:
    path = tmp_path / "plan.ssp"
    path.write_text(plan_of(*ENDS["a host each"]))
    found = program(path, CUBE, hosts_of(1))
    assert '"broadcast": true' in (found.folder / "program.json").read_text()
    found.verify_processes()


def test_a_rank_says_among_whom_it_waits() -> None:
    found = program_of(compiled(CUBE, plan_of(*ENDS["a host each"]), hosts_of(1)), captured(CUBE)[0])
    sites, world = Sites(found.table, found.table.roles[0], ""), World(SimpleNamespace())
    world.call = AwaitedMessage("broadcast", 0, False, (0, 1, 2))
    assert sites.waits(world) == "broadcast of `gelu` among ranks 0, 1, 2; plan.ssp:6: assign b to second"
    world.call = AwaitedMessage("receive", 0, True, (2,))
    assert sites.waits(world).startswith("receive of the gradient of `gelu` from rank 2;")


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("spec", "text"),
    [(CUBE, plan_of(*ends)) for ends in (CASES["5"], CASES["7, 8"], (End(2, 2, {"i": "hd"}), End(3, 2, {"j": "d"})))],
    ids=["case 5", "case 7, 8", "other devices"],
)
def test_any_message_may_be_broadcast(spec: str, text: str) -> None:
    """How a piece travels does not change what arrives: all messages of a plain program, broadcast."""
    model, _ = captured(spec)
    plain = compiled(spec, text, None)
    messages = tuple(
        replace(m, forward=replace(m.forward, broadcast=True), backward=replace(m.backward, broadcast=True))
        if isinstance(m, Transfer) and m.backward is not None
        else m
        for m in plain.messages
    )
    program = replace(plain, messages=messages)
    assert any(m.forward.repeats for m in messages) and prove(program).failures == ()
    finished = run_in_process(program_of(program, model), SGD)
    assert difference(verify_dumps(model, SGD, finished.losses, finished.dumps)) is None
