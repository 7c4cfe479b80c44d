"""What recomputed operators of a layer keep: less than without, and in the simulator as much as in the program."""

import gc
from functools import cache
from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.simulate.memory.test_program_memory import Watched
from tests.simulate.steps import activations, graph_of, step

LLAMA = "llama:tiny,layers=3,seq=32"
GPT = "gpt:tiny,layers=3"
DATA = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"
ZERO = DATA + "split model.weights by row into dp\n"
SEQUENCE = """
use tensor_parallel: tensor_parallel
mesh gpus(tp = 2)
tensor_parallel(model)
split model[tp = none] by seq into tp where possible
recompute model.gathers
assign model to gpus
"""
ACTIVATION = 'recompute model["*.mlp."] | model["*.mlp.act_fn"]\n'
LLAMA_NORMS = 'recompute model["*_layernorm"]\n'
GPT_NORMS = 'recompute model["h.*.ln_1"] | model["h.*.ln_2"]\n'
CASES = [
    (LLAMA, DATA, ACTIVATION),
    (LLAMA, DATA, "recompute model.silu | model.mul\n"),
    (LLAMA, DATA, LLAMA_NORMS + ACTIVATION),
    (LLAMA, DATA, 'recompute model["*_layernorm"] | model["*.mlp"]\n'),
    (LLAMA, ZERO, LLAMA_NORMS + ACTIVATION),
    (GPT, DATA, 'recompute model["h.*.mlp.act"]\n'),
    (GPT, DATA, GPT_NORMS),
    (GPT, DATA, 'recompute model["h.*.attn."]\n'),
    (GPT, ZERO, GPT_NORMS + 'recompute model["h.*.mlp.act"]\n'),
    (GPT, SEQUENCE, GPT_NORMS),
]


@cache
def compiled(spec: str, text: str) -> Compiled:
    return compile_source(Source("plan.ssp", text), graph_of(spec), {}, Path())


def kept(found: Compiled) -> int:
    (function,) = found.program.functions
    return activations(found.program).of(function).size_bytes


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("spec", "plan", "word"), CASES)
def test_what_a_forward_keeps(tmp_path: Path, spec: str, plan: str, word: str) -> None:
    found = compiled(spec, plan + word)
    watched = Watched(found, 0, tmp_path / "program", spec)
    gc.collect()
    gc.freeze()
    watched.step()
    assert watched.forward(0) == kept(found) < kept(compiled(spec, plan))


@pytest.mark.thinned(16)  # tests/simulate/memory/test_program_memory.py has the most of other plans
@pytest.mark.parametrize(("spec", "plan", "word"), CASES)
def test_the_most_at_once(tmp_path: Path, spec: str, plan: str, word: str) -> None:
    found = compiled(spec, plan + word)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    assert simulated == pytest.approx(Watched(found, 0, tmp_path / "program", spec).most(), rel=0.05)
