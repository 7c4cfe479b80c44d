"""Tables cut along what indices count, read and written, in process, against one device."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.ir.function import Conversion, OpPart
from ssdsl.ir.program import Program
from ssdsl.lower.functions.gather_again import is_gathered
from ssdsl.prove.prove import prove
from ssdsl.runtime.options import Training
from tests.models.lookups import KINDS
from tests.prove.mutations import mutants
from tests.verify.conftest import captured, program_of_text

TRAINING = Training(2, optimizer="adamw", lr=0.05)
NAMES = [kind.__name__ for kind in KINDS if kind.__name__ != "of_two"]


def plan(axes: str, *splits: str) -> str:
    words = "".join(f"split model by {split}\n" for split in splits)
    return f"mesh gpus({axes})\n{words}assign model to gpus\n"


PLANS = {
    "rows": plan("a = 3", '"table.0" into a'),
    "unequal": plan("a = 3", '"table.0" into a = [1, 8, 3]'),
    "apart": plan("a = 2", '"table.0" into a parts [[0, 3], [1, 2]]'),
    "twice": plan("a = 2, b = 3", '"table.0" into a, b'),
    "points": plan("dp = 4", "points into dp"),
    "both": plan("dp = 2, a = 2", "points into dp", '"table.0" into a'),
    "micro-batches": plan("dp = 2, a = 2", "points into m = 3, dp", '"table.0" into a'),
    "on the same devices": plan("a = 2", "points into a where possible", '"table.0" into a where possible'),
    "in time": plan("dp = 2", "points into dp", '"table.0" into t = 2'),
}


def tried(name: str, text: str) -> Outcome:
    model, graph = captured(f"lookups.py:net_{name}")
    return try_plan(model, graph, text, TRAINING)


def lowered(name: str, text: str) -> Program:
    _, graph = captured(f"lookups.py:net_{name}")
    return program_of_text(text, graph)


@pytest.mark.covering
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_one_device(name: str, text: str) -> None:
    outcome = tried(name, text)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("splits", [('"grid.0" into a',), ('"grid.1" into b',), ('"grid.0" into a', '"grid.1" into b')])
def test_two_axes_may_be_cut_at_once(splits: tuple[str, ...]) -> None:
    outcome = tried("of_two", plan("a = 2, b = 3", "points into m = 2", *splits))
    assert outcome.kind == "equal", outcome.text


EXTREMES = ["largest", "largest_alone", "smallest", "smallest_there", "largest_of_batches", "largest_of_groups"]
KERNELS = [
    ("indexed", {"index_part"}),
    ("selected", {"index_select_part"}),
    ("scattered", {"scatter_add_part", "index_select_part"}),
    ("added", {"index_add_part", "index_part"}),
    ("one_row", {"select_part"}),
    ("largest", {"scatter_reduce_part", "index_part"}),
    ("smallest", {"scatter_reduce_part", "index_part"}),
    ("averaged", {"scatter_add_part", "index_part"}),
    ("averaged_alone", {"scatter_add_part", "index_part"}),
    ("summed", {"scatter_add_part", "index_part"}),
]


@pytest.mark.parametrize(("name", "kernels"), KERNELS)
def test_nothing_is_equal_because_it_stayed_whole(name: str, kernels: set[str]) -> None:
    program = lowered(name, PLANS["both"])
    found = {i.kernel.function for f in program.functions for i in f.body() if isinstance(i, OpPart)}
    assert found - {""} == kernels


@pytest.mark.parametrize("name", ["summed", "summed_alone", "averaged", "averaged_alone", *EXTREMES])
def test_points_that_are_reduced_stay_where_they_are(name: str) -> None:
    program = lowered(name, PLANS["points"])
    assert not any(isinstance(i, Conversion) and is_gathered(i) for f in program.functions for i in f.body())


@pytest.mark.parametrize("name", EXTREMES)
def test_the_largest_are_merged_among_parts_of_points_alone(name: str) -> None:
    """Parts of the table have nothing to say to each other."""
    program = lowered(name, PLANS["both"])
    kernels = [i.kernel for f in program.functions for i in f.body() if isinstance(i, OpPart)]
    assert {(k.axes, len(k.offsets)) for k in kernels if k.function == "scatter_reduce_part"} == {(("dp",), 1)}
    found = list(mutants(program, ("kernel_changed", "split_dropped", "split_changed")))
    assert [str(m) for m in found if not prove(m.program).failures] == []


@pytest.mark.parametrize("name", ["one_row", "indexed", "largest"])
def test_parts_that_are_no_runs_are_gathered(name: str) -> None:
    program = lowered(name, PLANS["apart"])
    assert not any(i.kernel.function for f in program.functions for i in f.body() if isinstance(i, OpPart))


def test_rows_that_are_read_one_by_one_are_gathered_once() -> None:
    program = lowered("each_row", PLANS["rows"])
    gathered = [i for f in program.functions for i in f.body() if isinstance(i, Conversion) and is_gathered(i)]
    assert len(gathered) == 1


@pytest.mark.parametrize("name", NAMES)
def test_wrong_places_are_refuted(name: str) -> None:
    program = lowered(name, PLANS["unequal"])
    assert not prove(program).failures
    found = list(mutants(program, ("kernel_changed", "split_dropped", "split_changed")))
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []
