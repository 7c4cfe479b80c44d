"""Attention whose heads of queries share heads of keys, cut over more devices than there are heads of keys."""

from collections.abc import Callable

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.ir.comm import AllReduce
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program as Compiled
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.text.source import Source
from tests.simulate.steps import step, traffic
from tests.verify.conftest import ROOT, TRAINING, Program, captured

BY_GROUP = """
mesh gpus(kv = 2, rep = 2)
split model by heads into kv
split model by heads_per_group into rep
split model by ffn into kv, rep
assign model to gpus
"""
PLAIN = """
mesh gpus(tp = {})
split model by heads into tp
split model by ffn into tp
{}
assign model to gpus
"""
FOUR = PLAIN.format(4, "split model by vocab into tp")
UNEQUAL = PLAIN.format(4, "split model by vocab into tp = [20, 13, 12, 3]")
ALONG_THE_SEQUENCE = PLAIN.format(4, "split model[tp = none] by seq into tp")
STATE = """
mesh gpus(dp = 2, tp = 4)
split model by batch into dp, m = 2
split model by heads into tp
split model by ffn into tp
split model.weights by row into dp
split model.optimizer by row into dp, tp
assign model to gpus
"""
RING_ELSEWHERE = """
mesh gpus(tp = 4)
split model["layers.0"] by heads into tp
split model["layers.1"] by seq into tp
split model["layers.1"].scaled_dot_product_attention by seq.keys into tp
assign model to gpus
"""
IN_TIME = """
mesh gpus(dp = 1)
split model by heads into c = 2
split model by heads_per_group into c_2 = 2
assign model to gpus
"""
MESHES = """
use pipeline: one_f_one_b
let replicas = [4, 1]
let parts = [1, 4]
mesh gpus(dp = replicas[s], tp = parts[s]) for s in 0..2
let stage = balance(model, 2)
assign stage[s] to gpus[s] for s in 0..2
split model by batch into m = 2, dp
split model by heads into tp
split model by ffn into tp
one_f_one_b(stage, 2)
"""
CASES = [
    *((how, text) for how in ("given", "interleaved", "expanded") for text in (BY_GROUP, FOUR)),
    ("given", PLAIN.format(8, "")),
    ("given", UNEQUAL),
    ("expanded", ALONG_THE_SEQUENCE),
    ("given", STATE),
    ("given", RING_ELSEWHERE),
    ("given", IN_TIME),
    ("expanded", MESHES),
    ("twelve", PLAIN.format(4, "")),
    ("unlike", PLAIN.format(8, "")),
]


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("how", "text"), CASES)
def test_numbers_are_those_of_one_device(how: str, text: str) -> None:
    model, graph = captured(f"shared_keys.py:{how}")
    outcome = try_plan(model, graph, text, TRAINING)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("width", [4, 8])
def test_shipped_plans(width: int, program: Callable[..., Program]) -> None:
    """A llama with two heads of keys and two of queries for each; eight devices are two replicas of four."""
    program("megatron", "llama:tiny", T=4, S=1, D=width // 4, M=2).verify()


def compiled(how: str, text: str) -> Compiled:
    return compile_source(Source("plan.ssp", text), captured(f"shared_keys.py:{how}")[1], {}, ROOT).program


def test_each_device_has_the_keys_of_its_queries() -> None:
    program = compiled("expanded", FOUR)
    layouts = {p.weight: str(p.layout) for p in program.params}
    assert program.plan.meshes[0].axes == (("tp_outer", 2), ("tp_inner", 2))
    assert [layouts[f"layers.0.{name}.weight"] for name in "qko"] == ["[S(0) S(1)]", "[S(0) R]", "[S(1) S(2)]"]
    assert layouts["rise.weight"] == "[S(0) S(0)]"


def test_an_evaluation_has_the_same_axes() -> None:
    model, graph = captured("shared_keys.py:given")
    training = compile_source(Source("plan.ssp", UNEQUAL), graph, {}, ROOT)
    evaluation = compile_evaluation(training, model)
    assert (evaluation.proof.failures, evaluation.program.params) == ((), training.program.params)


def test_keys_go_around_both_axes() -> None:
    kernels = [o.kernel for f in compiled("given", RING_ELSEWHERE).functions for o in f.operators()]
    (ring,) = (kernel for kernel in kernels if kernel.function == "attention_ring")
    assert ring.axes == ("tp_outer", "tp_inner")


def test_the_simulator_counts_what_is_sent() -> None:
    model, graph = captured("shared_keys.py:given")
    found = compile_source(Source("plan.ssp", FOUR), graph, {}, ROOT)
    ran = run_in_process(program_of(found.program, model), TRAINING)
    counted: dict[str, tuple[float, float]] = {}
    for counts in ran.counts.values():
        for kind, entry in counts.items():
            calls, size = counted.get(kind, (0, 0))
            counted[kind] = calls + entry["calls"] / TRAINING.steps, size + entry["bytes"] / TRAINING.steps
    assert traffic(step(found)) == counted


def test_large_sums_are_one_collective_over_both_axes() -> None:
    """An axis that is two costs what it costs as one: where sums are large, they are taken over both at once."""
    model = "llama:tiny,hidden=1024,seq=512,vocab=512"
    program = compile_source(Source("plan.ssp", FOUR), captured(model, meta=True)[1], {}, ROOT).program
    steps = [s for f in program.functions for i in f.body() if isinstance(i, Conversion) for s in i.forward]
    assert {s.axes for s in steps if isinstance(s, AllReduce)} == {("tp_outer", "tp_inner")}
