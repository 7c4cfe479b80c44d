"""Chunks from either end of a sequence, cut once more by the axis of tensor parallelism."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.comm import AllReduce, Exchange
from ssdsl.ir.function import Conversion
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,seq=16,batch=4,vocab=32"
EXPERTS = "mixtral:tiny,balance=0,batch=4"
RING = "split model.scaled_dot_product_attention by seq.keys into cp parts zigzag(C)\n"


def plan(more: str = "", of: str = "model", c: int = 2, t: int = 2, keys: str = RING) -> str:
    return (
        "use tensor_parallel: tensor_parallel\nuse sequence_parallel: sequence_parallel, zigzag\n"
        f"param C = {c}\nmesh gpus(cp = C, tp = {t})\n{more}split {of} by seq into cp parts zigzag(C)\n{keys}"
        f"tensor_parallel({of})\nsequence_parallel({of})\nassign model to gpus\n"
    )


APART = (
    'let others = model - model["experts"]\nsplit model["experts"] by experts into cp\n'
    'split model["experts"] by experts into tp\n'
)
PLANS = {
    "ring": (GPT, plan()),
    "gathered keys": (GPT, plan(keys="")),
    "wider than chunks": (GPT, plan(t=4)),
    "more chunks": (GPT, plan(c=4)),
    "micro-batches, recomputed": (GPT, plan('split model by batch into m = 2\nrecompute model["h.0"]\n')),
    "experts over both": (EXPERTS, plan(APART, "others")),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", PLANS)
def test_chunks_that_are_cut_again_compute_the_same(name: str) -> None:
    model, text = PLANS[name]
    found = try_plan(*captured(model), text, Training(2, optimizer="adamw"))
    assert found.kind == "equal", found.text


def test_only_what_is_needed_travels() -> None:
    """Norms are joined by an exchange of what a device lacks, and no sum is taken of more than is kept."""
    program = compile_source(Source("plan.ssp", plan()), graph_of(GPT), {}, None).program
    steps = [s for f in program.functions for i in f.body() if isinstance(i, Conversion) for s in i.forward]
    assert not any(isinstance(s, AllReduce) and s.axes == ("tp",) and s.elements > 4 * 16 for s in steps)
    assert {s.elements for s in steps if isinstance(s, Exchange) and s.axes == ("cp", "tp")} >= {4 * 4 * 32}
