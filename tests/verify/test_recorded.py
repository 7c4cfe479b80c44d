"""A recorded run: the times of its tasks are costs for the simulator, its last step is a timeline."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.load import load_cluster
from ssdsl.run.profile.recorded import measured_timeline, measured_times
from ssdsl.run.profile.recorded_profile import recorded_profile
from ssdsl.runtime.options import Training
from ssdsl.simulate.profile.measured import Measured
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.simulate.profile.read_costs import lacking, read_costs, write_costs
from ssdsl.simulate.simulate import simulate
from ssdsl.simulate.timeline import EventKind


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped cluster, not one that the user has measured."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def send_small_messages(recorder: Path) -> None:
    """Test messages of at most 256 KiB: those of 64 MiB took most of the test."""
    text, changed = re.subn(r"(?<=SIZES = \(1 << 10, 1 << 14, 1 << 18), [^)]*", "", recorder.read_text())
    assert changed
    recorder.write_text(text)


@pytest.mark.usefixtures("laptop")
def test_costs_and_timeline_of_a_run(program: Callable[..., Any], tmp_path: Path) -> None:
    made = program("zero_bubble", "gpt", S=2, M=4)
    compiled, source = made.compiled.program, made.compiled.source
    send_small_messages(made.folder / "runtime" / "profile" / "recorder.py")
    result = made.train(Training(steps=5, record=True))
    write_costs(str(tmp_path / "costs.json"), measured_times(compiled, result))
    times = read_costs(tmp_path / "costs.json").times

    assert {name.rpartition(".")[2] for name in times.tasks} == {"fwd", "dgrad", "wgrad"}
    assert all(time > 0 for time in (*times.tasks.values(), *times.transfers.values(), *times.optimizer.values()))
    assert min(times.forward, times.dgrad, times.wgrad, times.transfer) > 0

    timeline = measured_timeline(compiled, source, result)
    kinds = [e.kind for e in timeline.events]
    for kind in (EventKind.FORWARD, EventKind.DGRAD, EventKind.WGRAD):
        assert kinds.count(kind) >= 2 * 4  # a stage may have a block that runs once a step
    assert [row.ranks for row in timeline.rows] == [(0,), (1,)]
    assert all(0 <= e.start_s <= e.end_s <= timeline.step_s for e in timeline.events)
    assert all(e.lines for e in timeline.events if e.kind is EventKind.FORWARD)

    simulated = simulate(compiled, source, load_cluster("laptop"), Measured(compiled, times))
    names = {(e.name, e.coordinate, e.kind) for e in timeline.events if e.kind in (EventKind.FORWARD, EventKind.DGRAD)}
    assert names <= {(e.name, e.coordinate, e.kind) for e in simulated.timeline.events}
    busiest = max(sum(e.end_s - e.start_s for e in timeline.events if e.row == row) for row in (0, 1))
    assert simulated.step_s > busiest / 4  # the machine may be busy: only the order of magnitude

    profile = recorded_profile(compiled, result, "zero_bubble,S=2,M=4")
    assert lacking(compiled, profile) == () and profile.machine.processes == 2
    assert {phase for times in profile.operators.values() for phase in times} == {"forward", "dgrad", "wgrad"}
    assert {("send", 2), ("all_reduce", 2)} <= profile.network.keys() and profile.step_s > 0
    predicted = simulate(compiled, source, load_cluster("laptop"), Profiled(ProgramIndex(compiled), profile))
    assert predicted.step_s > busiest / 4


@pytest.mark.slow
def test_bf16_is_verified_against_float32(program: Callable[..., Any]) -> None:
    program("megatron", "gpt:tiny,dtype=bf16").verify()
