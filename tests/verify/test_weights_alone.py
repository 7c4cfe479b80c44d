"""What is computed from weights alone runs in the tasks that read it, with the numbers of one device."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.program import Program
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import graph_of

MODELS = str(Path(__file__).parent.parent / "models" / "tables.py")
TABLES, FOLLOWING = f"{MODELS}:tables", f"{MODELS}:following"
ONE = """
mesh gpus(dp = 2)
split model by batch into dp, m = 3
{more}
assign model to gpus
"""
STAGES = """
use pipeline: one_f_one_b, zb_h1
mesh gpus(pp = 2)
split model by batch into m = 3
{more}
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 3)
"""
PLANS = {
    "one device after another": ONE.format(more=""),
    "recomputed": ONE.format(more='recompute model["layers.*"]'),
    "parts of parts": ONE.format(more='split model["layers.0"] by width into c = 2 where possible'),
    "ZeRO-3": ONE.format(more="split model.weights by row into dp"),
    "stages": STAGES.format(more="", schedule="one_f_one_b"),
    "halves": STAGES.format(more="", schedule="zb_h1"),
}


def compiled(spec: str, text: str) -> Program:
    return compile_source(Source("plan.ssp", text), graph_of(spec), {}, Path()).program


def function_of(program: Program, operator: str) -> Function:
    """The function that computes an operator."""
    (found,) = (f for f in program.functions if any(op.operator == operator for op in f.operators()))
    return found


@pytest.mark.thinned(9)
@pytest.mark.parametrize("spec", [TABLES, FOLLOWING], ids=["tables", "following"])
@pytest.mark.parametrize("plan", PLANS)
def test_numbers_are_those_of_one_device(spec: str, plan: str) -> None:
    model = load(spec)
    outcome = try_plan(model, capture(model), PLANS[plan], Training(3, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("again", ["", "recompute model"])
@pytest.mark.parametrize("name", ["scaled", "counted"])
def test_in_parts_of_the_width(name: str, again: str) -> None:
    """Of a part of the width, not all that is computed from it can run beside what reads the result."""
    model = load(f"{MODELS}:{name}")
    plan = ONE.format(more=f"split model by width into c = 2 where possible\n{again}")
    outcome = try_plan(model, capture(model), plan, Training(3, optimizer="sgd", lr=0.1))
    assert outcome.kind == "equal", outcome.text


def test_with_the_micro_batches_that_read_it() -> None:
    program = compiled(TABLES, PLANS["one device after another"])
    assert [t.name for t in function_of(program, "index").time] == ["m"]


def test_what_backward_keeps_is_computed_once() -> None:
    """A weight of length one is a factor of the product that reads it."""
    program = compiled(TABLES, PLANS["one device after another"])
    assert not function_of(program, "div").time and not function_of(program, "mul").time


def test_recomputed_with_the_layer_that_reads_it() -> None:
    """Nothing of the tables, nor of the weights of length one, is kept from forward to backward."""
    function = function_of(compiled(TABLES, PLANS["recomputed"]), "index")
    recomputed = {i.operator for s in function.sections if s.recompute for i in s.body if isinstance(i, OpPart)}
    assert {"index", "div", "mul"} <= recomputed


def test_what_two_stages_read_is_computed_once() -> None:
    """Its readers are of two functions: it is computed where the first of them is, and sent once."""
    program = compiled(TABLES, PLANS["stages"])
    assert not function_of(program, "tanh").time
    assert [t.name for t in function_of(program, "index").time] == ["m"]
    (sent,) = (m for m in program.messages if m.value == "tanh")
    assert not sent.time


def test_a_buffer_changes_once() -> None:
    program = compiled(FOLLOWING, PLANS["one device after another"])
    assert not function_of(program, "lerp").time


def test_what_enters_a_recomputed_part_is_computed_once() -> None:
    """Each task in flight would keep one of its own."""
    program = compiled(TABLES, ONE.format(more='recompute model["layers.*"].softmax | model["layers.*"].add'))
    assert not function_of(program, "index").time
