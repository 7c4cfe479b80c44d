"""Lines, planes and volumes that points read, cut along their axes, in process, against one device."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.ir.function import Kernel, OpPart
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.runtime.options import Training
from tests.prove.mutations import mutants
from tests.verify.conftest import captured, program_of_text

TRAINING = Training(2, optimizer="adamw", lr=0.05)
NAMES, OF_BORDERS = ("volume", "geometric", "nearest"), ("reflected", "border")
X, Y, Z = (f"volume.grid.{axis}" for axis in (2, 3, 4))


def plan(axes: str, *splits: str, more: str = "") -> str:
    words = "".join(f"split model by {split}\n" for split in splits)
    return f"mesh gpus({axes})\n{words}{more}assign model to gpus\n"


STATE = "".join(f"split model.{word} by row into dp\n" for word in ("optimizer", "grads", "weights"))
PLANS = {
    "one axis": plan("a = 2", f"{X} into a"),
    "two axes": plan("a = 2, b = 3", f"{X} into a", f"{Y} into b"),
    "three axes": plan("a = 2, b = 2, c = 2", f"{X} into a", f"{Y} into b", f"{Z} into c"),
    "one axis twice": plan("a = 2, b = 2", f"{Z} into a, b"),
    "unequal": plan("a = 3", f"{Y} into a = [1, 3, 2]"),
    "points": plan("dp = 2, a = 2, b = 2", "points into dp", f"{X} into a", f"{Z} into b"),
    "micro-batches": plan("dp = 2, a = 2", "points into m = 2, dp", f"{Y} into a"),
    "in time": plan("dp = 2", "points into dp", f"{Z} into t = 4"),
    "features": plan("a = 2, f = 2", f"{X} into a", '"volume.grid.1" into f'),
    "zero-3": plan("dp = 2, a = 2", "points into dp", f"{X} into a", more=STATE),
}


def tried(name: str, text: str) -> Outcome:
    model, graph = captured(f"fields.py:net_{name}")
    return try_plan(model, graph, text, TRAINING)


def lowered(name: str, text: str) -> Program:
    _, graph = captured(f"fields.py:net_{name}")
    return program_of_text(text, graph)


def kernels(program: Program) -> list[Kernel]:
    found = (i.kernel for f in program.functions for i in f.body() if isinstance(i, OpPart))
    return [kernel for kernel in found if kernel.function]


@pytest.mark.covering
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_one_device(name: str, text: str) -> None:
    outcome = tried(name, text)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", OF_BORDERS)
def test_points_beyond_borders_are_those_of_one_device(name: str, text: str) -> None:
    outcome = tried(name, text)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(("text", "cut"), [("one axis", 1), ("two axes", 2), ("three axes", 3), ("in time", 1)])
def test_parts_of_the_volume_are_told_where_they_are(text: str, cut: int) -> None:
    """Nothing is equal because it stayed whole."""
    (kernel,) = kernels(lowered("volume", PLANS[text]))
    assert (kernel.function, [place.size for place in kernel.places]) == ("grid_sample_part", [4, 6, 8])
    assert sum(bool(place.offsets) for place in kernel.places) == cut


def test_a_line_and_a_plane_are_cut_too() -> None:
    splits = ('"line.grid.2" into a', '"plane.grid.2" into a', '"plane.grid.3" into b')
    text = plan("a = 2, b = 3", *splits)
    outcome = tried("geometric", text)
    assert outcome.kind == "equal", outcome.text
    found = kernels(lowered("geometric", text))
    assert {kernel.function for kernel in found} == {"grid_sample_part"}
    assert [len(kernel.places) for kernel in found] == [2, 2]


@pytest.mark.parametrize("text", ["two axes", "unequal"])
def test_wrong_places_are_refuted(text: str) -> None:
    program = lowered("volume", PLANS[text])
    assert not prove(program).failures
    found = list(mutants(program, ("kernel_changed", "split_dropped", "split_changed")))
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []
