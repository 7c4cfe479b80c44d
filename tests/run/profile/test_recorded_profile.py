"""The clock of a rank loses no time and counts none twice; what it says becomes a profile of the whole program.

One rank's program runs in this process, alone. The clock's watches are counters: every look at one is a tick later, so
times are numbers of lines and nodes, the same in every run.
"""

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.codegen.write import write_program
from ssdsl.ir.program import Compute, Kernels, ScatterGrads, StartReduce, WaitReduce
from ssdsl.record import replace
from ssdsl.run.profile.recorded_profile import recorded_profile, usual_steps
from ssdsl.run.profile.timed_calls import timed_calls
from ssdsl.run.results import RankResult, Recorded, RunResult, Spent
from ssdsl.runtime.profile import operator_clock as clocks
from ssdsl.runtime.profile.recorder import CLOCKED
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InFolder
from ssdsl.simulate.profile.profile import Curve, Profile
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.simulate.profile.read_costs import lacking
from ssdsl.workspace import Compiled
from tests.simulate.memory.test_program_memory import Alone
from tests.simulate.steps import compiled, model_of

RUNS = "models.py:runs"
TICK = 1.0
KINDS = ("send", "all_reduce", "all_gather", "reduce_scatter")
NOT_COMPUTED = ("talk", "clock", "met")  # waiting for others, and what the clock itself takes


def ticks(patch: pytest.MonkeyPatch) -> None:
    computing, passing = count(), count()
    watches = {"thread_time": lambda: TICK * next(computing), "perf_counter": lambda: TICK * next(passing)}
    patch.setattr(clocks, "time", SimpleNamespace(**watches))


def clocked(program: Compiled, rank: int, folder: Path, patch: pytest.MonkeyPatch, spec: str = RUNS) -> RankResult:
    """One step of a rank, with its clock."""
    write_program(program.program, model_of(spec), folder, program.source)
    programs = InFolder(folder)
    engine = Engine(programs, World(Alone(rank)), torch.device("cpu"))
    engine.optimizer(torch.optim.SGD, lr=0.0)
    recorder = engine.record()
    assert recorder.clock is not None
    recorder.clock._line_s = recorder.clock._node_s = 0.0
    ticks(patch)
    with recorder.step(CLOCKED, CLOCKED + 1):
        engine.step(programs.batches[0], allow_nan=True)
    assert engine.world.tracer is None and recorder.clocked == [0]
    (step,) = recorder.clock.steps
    spent = tuple(Spent(*place, tuple(times)) for place, times in step.items())
    comm: dict[str, Any] = {}
    network = tuple((kind, n, 1024, TICK) for kind in KINDS for n in (2, 4))
    return RankResult(rank, engine.training.name, (), (), 0, comm, clocked={0: spent}, network=network)


def profile_of(program: Compiled, folder: Path, patch: pytest.MonkeyPatch) -> tuple[Profile, list[RankResult]]:
    ranks = [role.submesh.ranks()[0] for role in program.program.roles]
    found = [clocked(program, rank, folder / str(rank), patch) for rank in ranks]
    return recorded_profile(program.program, RunResult(1, tuple(found), folder), "a test"), found


def test_a_system_that_does_not_tell_which_cores_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no `sched_getaffinity`."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    rank = RankResult(0, "gpus", (), (), 0, {})
    profile = recorded_profile(compiled("data_parallel", RUNS, D=1).program, RunResult(1, (rank,), Path()), "a test")
    assert profile.machine.cores == os.cpu_count()


def test_a_rank_without_work_adds_nothing_to_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled("data_parallel", RUNS, D=1)
    rank = clocked(program, 0, tmp_path, monkeypatch)
    idle = RankResult(1, "idle", (), (), 0, {}, clocked={0: ()})
    profiles = [recorded_profile(program.program, RunResult(1, of, tmp_path), "a") for of in ((rank,), (rank, idle))]
    assert profiles[0].operators == profiles[1].operators


PLANS = [
    ("data_parallel", {"D": 1}),
    ("tensor_parallel", {"T": 2}),
    ("zero", {"D": 2, "Z": 3}),
    ("pipeline", {"S": 2, "M": 2}),
    ("halves", {"M": 2}),
    ("recomputed", {}),
    ("recomputed_halves", {"M": 2}),
]
# PyTorch runs a section again only up to what it needs of it. In halves, the last operator is left one look earlier.
ROUNDED = {"recomputed": 0.04, "halves": 0.01, "recomputed_halves": 0.01}


CASES = [pytest.param(plan, params, Kernels.EAGER, id=plan) for plan, params in PLANS]
CASES += [
    pytest.param(*PLANS[1], Kernels.COMPILED, id=f"{PLANS[1][0]}, compiled"),
    pytest.param(*PLANS[5], Kernels.COMPILED, id=f"{PLANS[5][0]}, compiled", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("plan", "params", "kernels"), CASES)
def test_a_run_predicts_itself(
    plan: str, params: dict[str, int], kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks take in sum what the clock has seen them take, and nothing is lacking."""
    program = compiled(plan, RUNS, kernels=kernels, **params)
    profile, ranks = profile_of(program, tmp_path, monkeypatch)
    assert lacking(program.program, profile) == ()
    costs = Profiled(ProgramIndex(program.program), profile)
    for role, rank in zip(program.program.roles, ranks, strict=True):
        tasks = [a for a in role.actions if isinstance(a, Compute)]
        predicted = sum(costs.of(task, role).compute_s for task in tasks)
        apart = ("step", "update", "reduce", "optimizer", *NOT_COMPUTED)
        seen = sum(sum(s.times_s) for s in rank.clocked[0] if s.what not in apart)
        assert predicted == pytest.approx(seen, rel=ROUNDED.get(plan, 1e-9))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("zero", [1, 2])
def test_reductions_take_what_they_took(zero: int, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind each backward (ZeRO-2) are one place each, those behind the last one are started and awaited."""
    program = compiled("zero_in_time", RUNS, Z=zero, N=nodes, M=2 // nodes)
    profile, (rank,) = profile_of(program, tmp_path, monkeypatch)
    at_once = replace(profile, network=dict.fromkeys(profile.network, Curve(((1, 0.0),))))
    (role,), costs = program.program.roles, Profiled(ProgramIndex(program.program), at_once)
    reductions = [a for a in role.actions if isinstance(a, (ScatterGrads, StartReduce, WaitReduce))]
    starts = {*([ScatterGrads] if zero == 2 else []), *([StartReduce] if zero == 1 or nodes > 1 else [])}
    assert {type(a) for a in reductions} == starts | {WaitReduce}
    seen = sum(sum(s.times_s) for s in rank.clocked[0] if s.what == "reduce")
    assert seen and sum(costs.of(a, role).communication_s for a in reductions) == pytest.approx(seen)


def test_the_middle_half_of_the_steps_counts() -> None:
    """By what both ranks took together; what they `met` for is in the time of their talk."""

    def rank(times_s: list[float]) -> RankResult:
        spent = {n: (Spent("F", 0, "", 1, (s,)), Spent("met", 8, "", 2, (50.0,) * n)) for n, s in enumerate(times_s)}
        return RankResult(0, "gpus", (), (), 0, {}, clocked=spent)

    def counted(*ranks: RankResult) -> list[float]:
        return [spent.times_s[0] for _, step in usual_steps(ranks) for spent in step if spent.what == "F"]

    assert counted(rank([1.0, 2.0, 3.0, 1.5]), rank([1.1, 2.1, 1.2, 9.0])) == [2.0, 3.0, 2.1, 1.2]
    assert counted(rank([1.0, 3.0, 2.0])) == [1.0, 2.0, 3.0]
    assert counted(rank([])) == []


def test_what_the_clock_adds_is_known_by_the_steps_without_it() -> None:
    """Tasks compute for 7.2 s where the clock says 8; beside tasks, and in communication, it adds nothing."""
    places = (Spent("F", 0, "", 1, (3.0, 1.0)), Spent("B", 0, "", 1, (4.0,)), Spent("met", 8, "", 2, (2.0,)))
    others = (Spent("talk", 0, "", 0, (5.0,)), Spent("update", 0, "", 0, (6.0,)))
    tasks = Recorded("F0[0]", 0.0, 5.0, 1.0, 3.2), Recorded("B0[0]", 5.0, 11.0, 0.0, 4.0)
    plain = (tasks[0], Recorded("reduce", 4.0, 5.0, 0.0, 0.5), tasks[1])
    first = (Recorded("F0[0]", 0.0, 80.0, 0.0, 80.0),)  # before the clock: it warms up
    steps = (first, plain, plain)
    rank = RankResult(0, "gpus", (), (), 0, {}, recorded=steps, clocked={1: (*places, *others)})
    ((_, found),) = usual_steps([rank])
    assert [sum(s.times_s) for s in found] == pytest.approx([3.6, 3.6, 2.0, 5.0, 6.0])


@pytest.mark.parametrize("plan", ["tensor_parallel", "zero"])
def test_collectives_take_what_they_took_in_tasks(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a task's: a look of the clock when the rank comes, and one when it goes on."""
    program = compiled(plan, RUNS, **dict(PLANS)[plan])
    profile, (rank, *_) = profile_of(program, tmp_path, monkeypatch)
    (role,), costs = program.program.roles, Profiled(ProgramIndex(program.program), profile)
    tasks = [costs.of(a, role) for a in role.actions if isinstance(a, Compute)]
    met = [s for s in rank.clocked[0] if s.what == "met"]
    assert met and sum(len(s.times_s) for s in met) == sum(len(t.sent) for t in tasks)
    assert sum(t.communication_s for t in tasks) == pytest.approx(sum(sum(s.times_s) for s in met))


def test_what_is_gathered_has_places_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ZeRO-3 gathers, drops and scatters is no operator's time, nor the engine's, whose times are those of all
    plans. A gather has a look before it starts, one behind that, and one behind the wait. A scatter has two more, of
    its node: one before it begins, and one until the next node begins, in which the gradients that were scattered go.
    The last one is awaited behind all tasks."""
    program = compiled("zero", RUNS, D=2, Z=3)
    _, (rank,) = profile_of(program, tmp_path, monkeypatch)
    functions, facts = program.program.functions, ProgramIndex(program.program)
    forward = sum(len(s.gathers) for f in functions for s in f.sections)
    again = sum(sum(facts.regathered(f).again.values()) for f in functions)
    learning = sum(len(facts.regathered(f).learning) for f in functions)
    assert forward > again > 0
    seen = {
        what: sum(sum(s.times_s) for s in rank.clocked[0] if s.what == what) for what in ("gather", "drop", "scatter")
    }
    assert seen == {"gather": 3 * (forward + again), "drop": forward, "scatter": 5 * learning - 1}


def test_compiled_runs_are_timed_as_wholes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a row by the name of its function; a profile of it is none of single operators."""
    program = compiled("tensor_parallel", RUNS, T=2, kernels=Kernels.COMPILED)
    profile, (rank,) = profile_of(program, tmp_path, monkeypatch)
    costs = Profiled(ProgramIndex(program.program), profile)
    calls = ((f, called) for f in program.program.functions for called in f.called() if isinstance(called, tuple))
    words = {costs.words(f, called) for f, called in calls}
    assert words and all(profile.operators[word].keys() == {"forward", "backward"} for word in words)
    assert lacking(compiled("tensor_parallel", RUNS, T=2).program, profile)
    rows = {row.place: row for row in timed_calls(program.program, RunResult(1, (rank,), tmp_path))}
    (place,) = (place for place in rows if place.module == "layers.*.attention")
    assert place.name == "layers_attention" and "tensor_parallel.ssp" in place.plan
    assert rows[place].forward_s == 2 * TICK and rows[place].backward_s  # of two layers
