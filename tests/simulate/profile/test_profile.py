"""Profiles made up: what a program costs by one, which programs it is for, and what is said of those it is not for."""

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.program import Compute, Start, Update
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.profile import errors
from ssdsl.simulate.profile.costs_json import ProfileJson, decoded, encoded
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.profile.profile import GROWING, PHASES, Curve, Profile, ProfiledMachine, merged
from ssdsl.simulate.profile.profiled import Profiled, instructions, runs
from ssdsl.simulate.profile.read_costs import (
    CostsFile,
    check_machine,
    costs_for,
    digest,
    lacking,
    read_costs,
    read_whole_costs,
    write_costs,
    write_profile,
)
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.workspace import Compiled
from tests.simulate.steps import cluster_of, compiled, step

ERRORS = Path(__file__).parent.parent.parent / "errors"
CHAIN = "models.py:chain_of_8"
LAPTOP = ProfiledMachine("core of a test", "2.13", 1, 2, 2)
COMMAND = "ssdsl profile --model chain_of_8 one_f_one_b,S=2,M=2 --out p.json"


def profile_of(program: Compiled, second: float = 1.0) -> Profile:
    """One in which every phase of an operator takes a second, a byte of anything nothing, a message half a second."""
    costs = Profiled(ProgramIndex(program.program), Profile(LAPTOP))
    words: dict[str, dict[str, float]] = {}
    for task in (task for role in program.program.roles for task in role.computes()):
        function = program.program.functions[task.function]
        for instr in (i for i in function.body() if runs(function, i, task.phase)):
            words.setdefault(costs.words(function, instr), {})[task.phase.word] = second
    network = {(kind, 2): Curve(((1, second / 2),)) for kind in ("send", "all_reduce", "all_gather", "reduce_scatter")}
    return Profile(LAPTOP, words, network, {name: Curve(((1, 0.0),)) for name in GROWING}, 0.0, ("a test",))


def pipeline(M: int = 1) -> Compiled:
    return compiled("one_f_one_b", CHAIN, S=2, M=M)


def test_a_task_takes_what_its_instructions_take() -> None:
    found = pipeline()
    costs = Profiled(ProgramIndex(found.program), profile_of(found))
    first = found.program.functions[0]
    assert costs.of(Compute(0, (0,), Phase.FORWARD), found.program.roles[0]).compute_s == instructions(first)
    send = next(a for a in found.program.roles[0].actions if isinstance(a, Start) and not a.gradient)
    assert costs.of(send, found.program.roles[0]).communication_s == 0.5
    assert not costs.lacking
    slower = replace(profile_of(found), step_s=7.0)
    assert Profiled(ProgramIndex(found.program), slower).of(Update(), found.program.roles[0]).compute_s == 7.0
    assert step(found, costs).step_s == pytest.approx(
        step(found, Profiled(ProgramIndex(found.program), profile_of(found, 2.0))).step_s / 2
    )


def test_what_grows_with_a_task() -> None:
    """The engine by instructions, gradients by their bytes: the first of two micro-batches gives, the second adds."""
    found = pipeline(M=2)
    role, first = found.program.roles[0], found.program.functions[0]
    weights = sum(p.var.elements * 4 for p in first.parameters if p.var.gradient is not None)
    growing = {"task backward": Curve(((instructions(first), 100.0),)), "first gradient": Curve(((1, 1.0),))}
    growing |= {"next gradient": Curve(((1, 3.0),))}
    profile = profile_of(found, 0.0)
    profile = replace(profile, growing={**profile.growing, **growing})
    costs = Profiled(ProgramIndex(found.program), profile)
    assert costs.of(Compute(0, (0,), Phase.BACKWARD), role).compute_s == pytest.approx(100 + weights * (1 + 3) / 2)


def test_zero_2_gives_each_gradient_as_a_first_one() -> None:
    """Behind each micro-batch a device keeps its shard alone: nothing is there to which the next could be added."""
    shared, whole = (compiled("replicas", "gpt:tiny", D=2, M=2, Z=z) for z in (2, 1))
    own = profile_of(shared)
    own = replace(own, growing={name: curve for name, curve in own.growing.items() if name != "next gradient"})
    assert lacking(shared.program, own) == ()
    assert any("next gradient" in words for words in lacking(whole.program, own))


@pytest.mark.parametrize("plan", [("data_parallel", {"D": 2}), ("zero", {"D": 2, "Z": 1})])
def test_a_pipeline_of_two_predicts_data_parallel(plan: tuple[str, dict[str, int]]) -> None:
    """Two micro-batches of a pipeline are as large as two replicas' parts, and so are their operators."""
    recorded = compiled("pipeline", "gpt:tiny", S=2, M=2)
    name, params = plan
    assert lacking(compiled(name, "gpt:tiny", **params).program, profile_of(recorded)) == ()


def test_another_size_is_lacking() -> None:
    recorded = compiled("pipeline", "gpt:tiny", S=2, M=2)
    other = compiled("pipeline", "gpt:tiny", S=2, M=4)
    missing = lacking(other.program, profile_of(recorded))
    assert any("F.layer_norm" in words and "2x64x128:float32" in words for words in missing)
    both = merged([profile_of(recorded), profile_of(other, 3.0)])
    assert lacking(other.program, both) == lacking(recorded.program, both) == ()
    assert both.sources == ("a test",)


def test_a_run_that_was_disturbed_does_not_count() -> None:
    usual = profile_of(pipeline(M=2), 3.0)
    assert merged([usual, profile_of(pipeline(M=2), 50.0), usual]) == usual


@pytest.mark.parametrize("part", ["network", "growing"])
def test_nothing_else_is_guessed(part: str) -> None:
    found = pipeline(M=2)
    assert lacking(found.program, replace(profile_of(found), **{part: {}}))


def test_its_own_tasks_go_before_a_profile(tmp_path: Path) -> None:
    """What one run recorded: for its own program the tasks, for others the operators."""
    own, other = pipeline(M=2), pipeline(M=1)
    path = tmp_path / "costs.json"
    tasks = dict.fromkeys(("block0.fwd", "block0.bwd", "block1.fwd", "block1.bwd"), 2.0)
    profile = merged([profile_of(own), profile_of(other)])
    write_costs(str(path), Times(tasks=tasks), "one_f_one_b,S=2,M=2", digest(own.program), profile)
    found = read_costs(path)
    assert found.profile == profile
    assert isinstance(costs_for(own.program, found, COMMAND, cluster_of("laptop")), Measured)
    assert isinstance(costs_for(other.program, found, COMMAND, cluster_of("laptop")), Profiled)
    stages = CostsFile("costs.json", Times(1.0, 1.0, 1.0))
    assert isinstance(
        costs_for(other.program, stages, COMMAND, cluster_of("laptop")), Measured
    )  # times of stages are for any plan


def refused(program: Compiled, found: CostsFile) -> tuple[Diagnostic, ...]:
    with pytest.raises(PlanError) as raised:
        costs_for(program.program, found, COMMAND, cluster_of("laptop"))
    return raised.value.diagnostics


def misfits(tmp_path: Path) -> dict[str, tuple[Diagnostic, ...]]:
    write_profile(str(tmp_path / "p.json"), Profile(LAPTOP, partial=True))
    with chdir(tmp_path), pytest.raises(PlanError) as partial:
        read_whole_costs(Path("p.json"))
    two, four = pipeline(M=2), pipeline(M=4)
    tasks = Times(tasks={"block0.fwd": 1.0, "block7.fwd": 1.0})
    profile = profile_of(four)
    few = replace(profile, operators={}, sources=())
    wide = compiled("data_parallel", CHAIN, D=4)
    with pytest.raises(PlanError) as mixed:
        check_machine("p.json", LAPTOP, replace(LAPTOP, torch="2.14"))
    return {
        "another micro-batch": refused(two, CostsFile("p.json", profile=profile)),
        "no operator": refused(two, CostsFile("p.json", profile=few)),
        "tasks of another program": refused(two, CostsFile("c.json", tasks, "gpipe,S=2,M=4", "0" * 16)),
        "tasks by hand": refused(two, CostsFile("c.json", tasks)),
        "more ranks": refused(wide, CostsFile("p.json", profile=profile)),
        "another torch": mixed.value.diagnostics,
        "a partial one in a search": partial.value.diagnostics,
    }


def test_what_is_said_of_misfits(golden: Callable[[Path, str], None], tmp_path: Path) -> None:
    codes: dict[str, list[str]] = {}
    for name, found in misfits(tmp_path).items():
        (diagnostic,) = found
        codes.setdefault(diagnostic.code, []).append(f"# {name}\n{render(diagnostic)}")
    own = [code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__]
    assert [*codes] == [code for code in own if code != "E0651"]
    assert all(REGISTRY[code].__doc__ for code in own)
    for code, cases in codes.items():
        golden(ERRORS / f"{code}.err", "\n\n".join(cases) + "\n")


# -- the file ----------------------------------------------------------------------------------------------------------

times = st.floats(0, 1e6)
curves = st.dictionaries(st.integers(0, 2**50), times, min_size=1, max_size=3).map(
    lambda d: Curve(tuple(sorted(d.items())))
)
profiles = st.builds(
    Profile,
    st.builds(ProfiledMachine, st.text(max_size=5), st.text(max_size=5), *[st.integers(1, 99)] * 3),
    st.dictionaries(st.text(max_size=9), st.dictionaries(st.sampled_from(PHASES), times), max_size=3),
    st.dictionaries(st.tuples(st.sampled_from(("send", "all_reduce")), st.integers(2, 99)), curves, max_size=2),
    st.dictionaries(st.sampled_from(GROWING), curves, max_size=3),
    times,
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(profiles)
def test_what_is_written_reads_the_same(profile: Profile) -> None:
    assert decoded(encoded(ProfileJson.of(profile)).encode(), ProfileJson).profile() == profile


def test_a_file_with_a_profile_alone(tmp_path: Path) -> None:
    profile = profile_of(pipeline())
    write_profile(str(tmp_path / "p.json"), profile)
    assert read_costs(tmp_path / "p.json").profile == profile


@given(curves, st.integers(0, 2**51))
def test_curves_go_through_their_points_and_never_below(curve: Curve, size: int) -> None:
    for at, time_s in curve.points:
        assert curve.growing(at) == curve.reaching(at) == time_s
    assert curve.growing(size) >= 0 and curve.reaching(size) >= 0
