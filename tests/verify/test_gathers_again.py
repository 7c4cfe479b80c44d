"""`recompute OPS.gathers`: backward gathers what forward did not keep, and numbers are those of one device."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

MODEL = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=4,vocab=32"
LLAMA = "llama:tiny"  # three products read what was gathered
PLAN = """
use pipeline: one_f_one_b, zb_h1
use tensor_parallel: tensor_parallel

mesh gpus(pp = 2, tp = 2)

split model by batch into m = 2
tensor_parallel(model)
split model[tp = none] by seq into tp where possible
{word}

let stage = balance(model, 2)

assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 2)
"""


def compiled(spec: str, word: str, schedule: str = "one_f_one_b") -> Program:
    text = PLAN.format(word=word, schedule=schedule)
    return compile_source(Source("plan.ssp", text), graph_of(spec), {}, Path()).program


def again(program: Program) -> list[str]:
    found = (i for f in program.functions for i in f.body() if isinstance(i, Conversion) and i.again)
    return [i.source.value for i in found]


@pytest.mark.parametrize("spec", [MODEL, LLAMA])
def test_numbers_are_those_of_one_device(spec: str) -> None:
    model, graph = captured(spec)
    text = PLAN.format(word="recompute model.gathers", schedule="one_f_one_b")
    outcome = try_plan(model, graph, text, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("", 0),
        ("recompute model.gathers", 2 * 2 + 1),  # of each layer, and of the head
        ('recompute model["h.0"].gathers', 2),
        ("recompute model.linear.gathers", 1),  # of the head alone: the others are addmm
        ("recompute model.layer_norm.gathers", 0),  # they read parts
        ('recompute model.gathers\nrecompute model["h.0"]', 2 + 1),  # what a recomputed layer gathers it gathers anyway
    ],
)
def test_what_is_gathered_again(word: str, count: int) -> None:
    assert len(again(compiled(MODEL, word))) == count


def test_what_others_keep_stays() -> None:
    """Queries, keys and values read one gathered tensor: it is gone only if none of the three keeps it."""
    (some, every) = (compiled(LLAMA, f"recompute {ops}.gathers") for ops in ('model["*.q_proj"]', "model"))
    assert not again(some) and again(every)


def test_halves_keep_what_they_gather() -> None:
    assert not again(compiled(MODEL, "recompute model.gathers", "zb_h1"))
