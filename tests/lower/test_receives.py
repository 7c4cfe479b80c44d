"""Receives are posted as early as there are buffers for them: never too many, in one order, and worth it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.action import End, Start, Wait
from ssdsl.ir.program import Role
from ssdsl.lower.tasks import hoist_receives
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.launch import Training
from ssdsl.run.verify.verify import difference, verify_dumps
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


@pytest.mark.parametrize("plan", ["gpipe", "v", "bursts"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_buffers_are_bounded_and_used(
    plan: str, ahead: int, compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a message at most `ahead` values lie beside the next; of some as many do."""
    monkeypatch.setattr(hoist_receives, "AHEAD", ahead)
    assert max(map(_most, compiled(PLANS[plan]).program.roles)) == ahead + 1


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
    """Values and gradients that a stage receives; the others have two beside the next."""
    program = compiled(GPIPE + "prefetch stage[2] by 5\n").program
    assert [_most(role) for role in program.roles] == [3, 3, 6, 3]
    assert [_most(role) for role in compiled(GPIPE + "prefetch model by 0\n").program.roles] == [1] * 4


def test_neighbours_have_lanes_of_their_own(compiled: Callable[[str], Compiled]) -> None:
    assert [m.lane for m in compiled(GPIPE).program.messages] == [0, 1, 0]


def test_links_that_are_as_slow_as_tasks_are_kept_busy(
    compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPipe: after one transfer and one task per hop the last stage waits for nothing, forward and backward."""
    assert _step(compiled(GPIPE), 1.0) == pytest.approx(3 * (16 + 3) + 2 * 3)
    monkeypatch.setattr(hoist_receives, "AHEAD", 0)
    assert _step(compiled(GPIPE), 1.0) > 80


def test_more_buffers_pay_where_tasks_come_in_bursts(
    compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for ahead in (0, 1, 2, 8):
        monkeypatch.setattr(hoist_receives, "AHEAD", ahead)
        found.append(_step(compiled(BURSTS), 2.0))
    assert found[0] > 1.05 * max(found[1:]) and max(found[1:]) < 1.02 * min(found[1:])  # one is nearly enough


def test_a_buffer_is_memory_from_when_it_is_asked_for(
    compiled: Callable[[str], Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stage asks for its first values at once, though they come late."""

    def held(ahead: int) -> int:
        monkeypatch.setattr(hoist_receives, "AHEAD", ahead)
        found = compiled(GPIPE)
        report = simulate(found.program, found.source, load_cluster("v100x32"))
        return report.timeline.memory[3].size_bytes[0]

    assert held(3) - held(1) == 2 * 4 * 4  # two values of [1, 4] in float32


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
