"""Running sums and the largest elements along a cut dimension, in process, against one device."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import OpPart
from ssdsl.prove.prove import prove
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.models.running import BATCH, KINDS, WIDE
from tests.prove.mutations import mutants
from tests.simulate.steps import step, traffic
from tests.verify.conftest import HERE, captured, program_of_text

TRAINING = Training(2, optimizer="adamw", lr=0.05)
NAMES = [kind.__name__ for kind in KINDS]
WIDTH = "rise.weight.0"  # what the first layer makes


def plan(axes: str, *splits: str) -> str:
    words = "".join(f"split model by {split}\n" for split in splits)
    return f"mesh gpus({axes})\n{words}assign model to gpus\n"


PLANS = {
    "seq": plan("sp = 3", "seq into sp"),
    "unequal": plan("sp = 3", "seq into sp = [1, 3, 2]"),
    "batch": plan("dp = 2", "batch into dp"),
    "width": plan("tp = 4", f"{WIDTH} into tp"),
    "widths": plan("tp = 3", f"{WIDTH} into tp = [2, 7, 3]"),
    "twice": plan("c = 2, b = 3", f"{WIDTH} into c, b"),
    "swapped": plan("a = 2, b = 3", f"{WIDTH} into b, a"),
    "tiles": plan("sp = 2, tp = 2", "seq into sp", f"{WIDTH} into tp"),
    "micro": plan("sp = 2", "batch into m = 2", "seq into sp"),
    "in turn": plan("dp = 2", "batch into m = 2, dp"),
    "in time": plan("dp = 1", "seq into t = 2"),
}


def tried(name: str, text: str) -> Outcome:
    model, graph = captured(f"running.py:net_{name}")
    return try_plan(model, graph, text, TRAINING)


@pytest.mark.covering
@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_one_device(name: str, text: str) -> None:
    outcome = tried(name, text)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["flat", "counted"])
def test_unequal_parts_inside_of_unequal_ones_are_refused(name: str) -> None:
    """Of an axis of batch and sequence: how long a run of samples is differs from device to device."""
    outcome = tried(name, plan("sp = 3", "seq into sp = [3, 2, 1]", "batch into m = [2, 1, 1]"))
    assert (outcome.kind, outcome.sign) == ("refused", "E0406"), outcome.text


CHUNKS = plan("cp = 2", "seq into cp = [1, 2, 2, 1] parts [[0, 3], [1, 2]]")


def test_running_sums_of_inputs_are_computed_whole_where_chunks_are_apart() -> None:
    outcome = tried("packed", CHUNKS)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("text", [CHUNKS, plan("cp = 2", "seq into cp = [3, 3] parts [[1], [0]]")])
def test_running_sums_of_activations_are_computed_whole_where_parts_are_no_runs_in_order(text: str) -> None:
    outcome = tried("summed", text)
    assert outcome.kind == "equal", outcome.text


KERNELS = [
    ("summed", "seq", {"cumsum_parts"}),
    ("summed", "swapped", {"cumsum_parts"}),
    ("multiplied", "width", {"cumprod_parts"}),
    ("exponentials", "tiles", {"logcumsumexp_parts"}),
    ("counted", "batch", {"cumsum_parts"}),
    ("best", "widths", {"topk_parts", "gather_part"}),
    ("flat", "seq", set()),  # parts of the inner dimension are no runs
]


@pytest.mark.parametrize(("name", "text", "kernels"), KERNELS)
def test_parts_work_together(name: str, text: str, kernels: set[str]) -> None:
    """Nothing is equal because it stayed whole."""
    _, graph = captured(f"running.py:net_{name}")
    program = program_of_text(PLANS[text], graph)
    found = {i.kernel.function for f in program.functions for i in f.body() if isinstance(i, OpPart)}
    assert {function for function in found if function.endswith(("_parts", "_part"))} == kernels


@pytest.mark.parametrize(("name", "text"), [("summed", "seq"), ("multiplied", "seq"), ("best", "twice")])
def test_the_simulator_counts_what_parts_tell_each_other(name: str, text: str) -> None:
    model, graph = captured(f"running.py:net_{name}")
    found = compile_source(Source("plan.ssp", PLANS[text]), graph, {}, HERE)
    ran = run_in_process(program_of(found.program, model), TRAINING)
    entries = [counts["all_reduce"] for counts in ran.counts.values()]
    counted = tuple(sum(entry[word] for entry in entries) / TRAINING.steps for word in ("calls", "bytes"))
    assert traffic(step(found))["all_reduce"] == counted


def test_what_travels_is_a_total_of_each_part() -> None:
    """Of three parts, forward and backward, for each row; the rest are gradients of weights and the loss."""
    model, graph = captured("running.py:net_summed")
    found = compile_source(Source("plan.ssp", PLANS["seq"]), graph, {}, HERE)
    ran = run_in_process(program_of(found.program, model), TRAINING)
    weights = sum(f.elements for f in found.program.flats)
    totals = 2 * 3 * BATCH * WIDE
    assert ran.counts[0]["all_reduce"]["bytes"] == TRAINING.steps * 8 * (totals + weights)


@pytest.mark.parametrize(("name", "text"), [("summed", "unequal"), ("best", "twice")])
def test_wrong_places_of_parts_are_refuted(name: str, text: str) -> None:
    _, graph = captured(f"running.py:net_{name}")
    program = program_of_text(PLANS[text], graph)
    assert not prove(program).failures
    found = list(mutants(program, ("kernel_changed", "split_dropped", "split_changed")))
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []
