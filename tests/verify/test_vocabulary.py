"""Losses of logits that are cut along the vocabulary, in process, against one device; no device has all of them."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.comm import AllReduce
from ssdsl.ir.function import Conversion, OpPart
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.models.vocabulary import BATCH, LOSSES, SEQ, VOCAB
from tests.prove.mutations import mutants
from tests.simulate.steps import step, traffic
from tests.verify.conftest import HERE, TRAINING, captured, program_of_text

NAMES = [loss.__name__ for loss in LOSSES]
PLANS = {
    "equal": "mesh gpus(tp = 2)\nsplit model by head.weight.0 into tp\nassign model to gpus\n",
    "unequal": "mesh gpus(tp = 3)\nsplit model by head.weight.0 into tp = [5, 4, 3]\nassign model to gpus\n",
    "both": "mesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\nsplit model by vocab into tp\n"
    "assign model to gpus\n",
    "uneven": "mesh gpus(tp = 3)\nsplit model by vocab into tp = [5, 6, 1]\nassign model to gpus\n",
    "twice": "mesh gpus(tp = 2, ep = 3)\nsplit model by vocab into tp, ep\nassign model to gpus\n",
    "micro": "mesh gpus(tp = 2)\nsplit model by batch into m = 2\nsplit model by vocab into tp\nassign model to gpus\n",
}


def tried(name: str, plan: str, optimizer: str = "sgd") -> Outcome:
    model, graph = captured(f"vocabulary.py:{name}")
    return try_plan(model, graph, PLANS[plan], Training(2, optimizer=optimizer, lr=0.05))


def compiled(name: str, plan: str) -> Program:
    _, graph = captured(f"vocabulary.py:{name}")
    return program_of_text(PLANS[plan], graph)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("plan", ["equal", "unequal"])
@pytest.mark.parametrize("name", NAMES)
def test_losses(name: str, plan: str) -> None:
    outcome = tried(f"net_{name}", plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.thinned(19)
@pytest.mark.parametrize("plan", ["uneven", "both", "twice", "micro"])
@pytest.mark.parametrize("name", NAMES)
def test_losses_of_tied_weights(name: str, plan: str) -> None:
    outcome = tried(f"tied_{name}", plan, "adamw")
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", NAMES)
def test_no_device_has_all_logits(name: str) -> None:
    """What the vocabulary was, in the logits and behind them, is cut; nothing gathers it."""
    program = compiled(f"net_{name}", "equal")
    logits = {v.name for v in program.graph.values.values() if v.origin == "operator" and v.shape[-1:] == (VOCAB,)}
    made = [var for f in program.functions for i in f.body() if isinstance(i, OpPart) for var in i.results]
    found = [var for var in made if var.name.value in logits]
    assert found
    assert {var.elements for var in found} == {BATCH * SEQ * VOCAB // 2}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "distilled"])  # its teacher's softmax is made before tasks
def test_the_simulator_counts_what_kernels_exchange(name: str) -> None:
    model, graph = captured(f"vocabulary.py:tied_{name}")
    found = compile_source(Source("plan.ssp", PLANS["both"]), graph, {}, HERE)
    ran = run_in_process(program_of(found.program, model), TRAINING)
    counted: dict[str, tuple[float, float]] = {}
    for counts in ran.counts.values():
        for kind, entry in counts.items():
            calls, size = counted.get(kind, (0, 0))
            counted[kind] = calls + entry["calls"] / TRAINING.steps, size + entry["bytes"] / TRAINING.steps
    before = found.program.prologues[0].body  # done once with the batch, which is in no simulated step
    sums = [s for i in before if isinstance(i, Conversion) for s in i.forward if isinstance(s, AllReduce)]
    calls, size = counted["all_reduce"]
    counted["all_reduce"] = calls - 4 * len(sums), size - 4 * 8 * sum(s.elements for s in sums)
    assert traffic(step(found)) == counted


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", ["weighted_and_smoothed", "likelihood", "by_hand", "confident", "lowest"])
def test_wrong_merges_are_refuted(name: str) -> None:
    program = compiled(f"tied_{name}", "both")
    assert prove(program).failures == ()
    found = list(mutants(program, ("kernel_changed", "split_dropped", "split_changed")))
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []
