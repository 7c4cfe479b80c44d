"""Where messages stand among tasks: in one order on all devices, with bounded buffers, and early enough to pay."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.program import Compute, End, Role, Start, Wait
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.plan import plan as plan_facts
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.simulate.early_receives import roles_of_devices
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import graph_of

STAGES = """\
mesh gpus(pp = 4)
split model by batch into m = 16
let stage = balance(model, 4)
assign stage[s] to gpus[pp = s] for s in 0..4
"""
GPIPE = f"use pipeline: gpipe\n{STAGES}gpipe(stage, 16)\n"
V = """\
use pipeline: zb_v
mesh gpus(pp = 4)
split model by batch into m = 16
let stage = balance(model, 8)
assign stage[s] to gpus[pp = min(s, 7 - s)] for s in 0..8
zb_v(stage, 16)
"""
BURSTS = f"""\
{STAGES}order by clock for s in 0..4, m in 0..16:
    stage[s].fwd[m = m] at 2 * (m // 4)
    stage[s].bwd[m = m] at 2 * (m // 4 + 4 - s) + 1
"""
ALL_TO_ALL = """\
mesh gpus(pp = 7)
split model by batch into m = 4
let layers = each("layers.*")
assign layers[i] to gpus[pp = (3 * i + i // 4) % 7] for i in 0..8
assign model - model["layers.*"] to gpus[pp = 6]
"""
PLANS = {
    "gpipe": GPIPE,
    "none ahead": GPIPE + "prefetch model by 0\n",
    "v": V,
    "bursts": BURSTS,
    "all to all": ALL_TO_ALL,
}


@pytest.fixture(scope="module")
def compiled() -> Callable[[str], Compiled]:
    graph: Graph = graph_of(f"{Path(__file__).parent / 'chain.py'}:chain")
    return lambda text: compile_source(Source("plan.ssp", text), graph, {}, None)


@pytest.mark.parametrize("plan", PLANS)
def test_all_devices_follow_one_order(plan: str, compiled: Callable[[str], Compiled]) -> None:
    """Its edges, from each task and message to the next one on a device, make no circle."""
    order = nx.DiGraph()
    for role in compiled(PLANS[plan]).program.roles:
        nodes = [
            (a.message, a.at, a.gradient) if isinstance(a, Start) else a
            for a in role.actions
            if isinstance(a, Start | Compute)
        ]
        nx.add_path(order, nodes)
    assert nx.is_directed_acyclic_graph(order)


@pytest.mark.parametrize("plan", ["gpipe", "v", "bursts"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_buffers_are_bounded_and_used(
    plan: str, ahead: int, compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a message at most `ahead` values lie beside the next; of some as many do, on devices."""
    monkeypatch.setattr(plan_facts, "AHEAD", ahead)
    program = compiled(PLANS[plan]).program
    assert max(map(_most, roles_of_devices(program))) == ahead + 1
    assert max(map(_most, program.roles)) <= ahead + 1


def _most(role: Role) -> int:
    """The values of a message that were asked for and are not awaited, at most."""
    waiting: Counter[tuple[int, bool]] = Counter()
    most = 0
    for action in role.actions:
        if isinstance(action, Start) and action.end is End.RECEIVE:
            waiting[action.message, action.gradient] += 1
            most = max(most, *waiting.values())
        elif isinstance(action, Wait):
            waiting[action.message, action.gradient] -= 1
    return most


def test_a_plan_says_how_many(compiled: Callable[[str], Compiled]) -> None:
    """Values and gradients that a stage receives; the others have two beside the next. In the program's own order it
    needs fewer."""
    program = compiled(GPIPE + "prefetch stage[2] by 5\n").program
    early = [_most(role) for role in roles_of_devices(program)]
    assert early == [3, 3, 6, 3] and [_most(role) for role in program.roles] == [1, 2, 2, 2]
    assert [_most(role) for role in roles_of_devices(compiled(GPIPE + "prefetch model by 0\n").program)] == [1] * 4


def test_neighbours_have_lanes_of_their_own(compiled: Callable[[str], Compiled]) -> None:
    assert [m.lane for m in compiled(GPIPE).program.messages] == [0, 1, 0]


def test_links_that_are_as_slow_as_tasks_are_kept_busy(
    compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPipe: after one transfer and one task per hop the last stage waits for nothing, forward and backward."""
    assert _step(compiled(GPIPE), 1.0) == pytest.approx(3 * (16 + 3) + 2 * 3)
    monkeypatch.setattr(plan_facts, "AHEAD", 0)
    assert _step(compiled(GPIPE), 1.0) > 80


def test_more_buffers_pay_where_tasks_come_in_bursts(
    compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for ahead in (0, 1, 2, 8):
        monkeypatch.setattr(plan_facts, "AHEAD", ahead)
        found.append(_step(compiled(BURSTS), 2.0))
    assert found[0] > 1.3 * found[1] and found == sorted({*found}, reverse=True)


def test_a_buffer_is_memory_from_when_it_is_asked_for(compiled: Callable[[str], Compiled]) -> None:
    """The last stage asks for its first values at once, though they come late."""
    found = compiled(GPIPE)

    def held(values: int) -> int:
        role = found.program.roles[3]
        first = [a for a in role.actions if isinstance(a, Start) and a.end is End.RECEIVE][:values]
        last = replace(role, actions=(*first, *(a for a in role.actions if a not in first)))
        program = replace(found.program, roles=(*found.program.roles[:3], last))
        return simulate(program, found.source, load_cluster("v100x32")).timeline.memory[3].size_bytes[0]

    assert held(5) - held(3) == 2 * 4 * 4  # two values of [1, 4] in float32


@pytest.mark.parametrize("plan", PLANS)
def test_numbers_are_those_of_a_single_device(plan: str, compiled: Callable[[str], Compiled]) -> None:
    model = load(f"{Path(__file__).parent / 'chain.py'}:chain")
    training = Training(steps=2, optimizer="sgd", lr=0.1)
    finished = run_in_process(program_of(compiled(PLANS[plan]).program, model), training)
    assert difference(verify_dumps(model, training, finished.losses, finished.dumps)) is None


def _step(compiled: Compiled, transfer: float) -> float:
    return _report(compiled, transfer).step_s


def _report(compiled: Compiled, transfer: float) -> Report:
    costs = Measured(compiled.program, Times(1, 1, 1, transfer))
    return simulate(compiled.program, compiled.source, load_cluster("v100x32"), costs)
