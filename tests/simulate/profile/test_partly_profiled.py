"""Profiles that may lack times: a program takes the measured ones, and a cluster's rates for the others."""

from pathlib import Path

import pytest

from ssdsl.record import replace
from ssdsl.simulate.price.roofline import Roofline
from ssdsl.simulate.profile.call_key import part_keys
from ssdsl.simulate.profile.partly_profiled import PartlyProfiled
from ssdsl.simulate.profile.profile import Curve, Profile, ProfiledMachine
from ssdsl.simulate.profile.read_costs import CostsFile, costs_for, read_costs, write_profile
from ssdsl.simulate.simulate import prices, simulate
from ssdsl.workspace import Compiled
from tests.simulate.steps import cluster_of, compiled

GPU = ProfiledMachine("a GPU", "unknown", 1, 1, 1)
CHAIN = "models.py:chain_of_8"
EMPTY = Profile(GPU, partial=True)


def costs(found: Compiled, profile: Profile, cluster: str = "laptop") -> PartlyProfiled:
    made = costs_for(found.program, CostsFile("p.json", profile=profile), "", cluster_of(cluster))
    assert isinstance(made, PartlyProfiled)
    return made


def roofline(found: Compiled, cluster: str = "laptop") -> Roofline:
    return prices(found.program, cluster_of(cluster)).costs


def keys(found: Compiled) -> dict[str, None]:
    """The likeliest key of each operator of a program."""
    facts = roofline(found).facts
    ops = [(f, op) for f in found.program.functions for op in f.operators()]
    return {key: None for f, op in ops for key in [*part_keys(facts, f, op)][:1]}


def test_an_empty_one_is_the_roofline() -> None:
    found = compiled("megatron", "gpt:tiny", S=2, T=2)
    own, other = costs(found, EMPTY), roofline(found)
    for role in found.program.roles:
        for action in role.actions:
            ours, theirs = own.of(action, role), other.of(action, role)
            assert replace(ours, compute_s=0.0) == replace(theirs, compute_s=0.0)
            assert ours.compute_s == pytest.approx(theirs.compute_s)
    assert own.coverage().share == 0 and own.coverage().lacking


def test_measured_calls_take_their_times_and_the_others_those_of_the_cluster() -> None:
    found = compiled("data_parallel", CHAIN, D=1)
    (linear,) = (key for key in keys(found) if key.startswith("aten::linear"))
    role, plain = found.program.roles[0], roofline(found)
    measured = costs(found, replace(EMPTY, calls={linear: {"forward": 2.0, "backward": 5.0}}))
    tasks = [*dict.fromkeys(role.computes())]
    whole = sum(measured.of(task, role).compute_s for task in tasks)
    count = sum(op.operator.startswith("linear") for f in found.program.functions for op in f.operators())
    assert count > 1 and whole == pytest.approx(count * 7.0, rel=0.01)
    coverage = measured.coverage()
    rest = coverage.computing_s - coverage.measured_s
    assert coverage.measured_s == pytest.approx(count * 7.0)
    assert 0 < rest < sum(plain.of(task, role).compute_s for task in tasks)
    assert sum(seconds for _, seconds in coverage.lacking) == pytest.approx(rest)
    assert not any("linear" in words for words, _ in coverage.lacking)


def test_without_a_backward_it_is_the_cluster_s() -> None:
    found = compiled("data_parallel", CHAIN, D=1)
    (linear,) = (key for key in keys(found) if key.startswith("aten::linear"))
    role, plain = found.program.roles[0], roofline(found)
    measured = costs(found, replace(EMPTY, calls={linear: {"forward": 2.0}}))
    backward = next(task for task in role.computes() if not task.phase.is_forward)
    assert measured.of(backward, role).compute_s == pytest.approx(plain.of(backward, role).compute_s)


def test_halves_of_a_backward_are_one_backward() -> None:
    """A trace has a backward as a whole; a schedule with halves takes as much in both together."""
    found = compiled("zero_bubble", CHAIN, S=2, M=2)
    (linear,) = (key for key in keys(found) if key.startswith("aten::linear"))
    role = found.program.roles[0]
    measured = costs(found, replace(EMPTY, calls={linear: {"forward": 0.0, "backward": 6.0}}))
    first = [task for task in role.computes() if task.at == (0,) and not task.phase.is_forward]
    count = sum(op.operator.startswith("linear") for op in found.program.functions[first[0].function].operators())
    assert len(first) == 2 and all(measured.of(task, role).compute_s > 0.1 for task in first)
    assert sum(measured.of(task, role).compute_s for task in first) == pytest.approx(6.0 * count, rel=0.01)


def test_collectives_of_a_known_size_take_their_time() -> None:
    found = compiled("megatron", "gpt:tiny", S=1, T=2, M=1)
    network = {("all_reduce", 2): Curve(((100_000, 1.0), (1_000_000, 2.0)))}
    measured, plain = costs(found, replace(EMPTY, network=network)), roofline(found)
    role = found.program.roles[0]
    task = next(role.computes())
    ours, theirs = measured.of(task, role), plain.of(task, role)
    large = [sent for sent in theirs.sent if sent.size_bytes >= 50_000]
    assert large and ours.communication_s > len(large) > theirs.communication_s
    far = replace(EMPTY, network={("all_reduce", 2): Curve(((10, 1.0), (20, 2.0)))})
    assert costs(found, far).of(task, role).communication_s < theirs.communication_s + len(theirs.sent) * 2


def test_calls_are_known_by_what_eager_pytorch_calls_them() -> None:
    found = compiled("data_parallel", "gpt:tiny", D=1)
    facts = roofline(found).facts
    every = {key for f in found.program.functions for op in f.operators() for key in part_keys(facts, f, op)}
    assert "aten::addmm of 384:float32, 512x128:float32, 128x384:float32" in every
    assert "aten::mul of 8x64x512:float32" in every  # by a number
    assert {"aten::view of 8x64x128:float32", "aten::tanh_ of 8x64x512:float32"} <= every
    assert "aten::scaled_dot_product_attention of " + ", ".join(3 * ["8x4x64x32:float32"]) in every


def test_a_cut_operator_is_known_by_its_local_shapes() -> None:
    cut = compiled("megatron", "gpt:tiny", S=1, T=2, M=1)
    assert "aten::addmm of 192:float32, 512x128:float32, 128x192:float32" in keys(cut)


def test_it_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile = replace(EMPTY, calls={"aten::relu of 8x4:float32": {"forward": 1.0}}, sources=("trace t.json",))
    write_profile(str(path), profile)
    assert read_costs(path).profile == profile
    write_profile(str(path), Profile(GPU))
    assert '"partial"' not in path.read_text() and '"calls"' not in path.read_text()


def test_a_recorded_profile_may_be_called_partial() -> None:
    """Operators by the words of `ssdsl profile` count as well."""
    found = compiled("data_parallel", CHAIN, D=1)
    words = next(words for words, _ in costs(found, EMPTY).coverage().lacking if "linear" in words)
    measured = costs(found, replace(EMPTY, operators={words: {"forward": 1.0, "backward": 1.0}}))
    assert measured.coverage().share > 0.9
    report = simulate(found.program, found.source, cluster_of("laptop"), measured)
    assert report.step_s > 8.0
