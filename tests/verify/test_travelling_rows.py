"""Rows that travel to their experts: wherever both are cut, and whatever a router sends, as on one device."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_resized, compile_source
from ssdsl.ir.comm import AllToAll
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.runtime.options import Training
from ssdsl.show.tables.communication import communications
from ssdsl.text.source import Source
from tests.prove.mutations import mutants
from tests.prove.mutations.mutant import unshared
from tests.verify.conftest import HERE, captured, program_of_text

MIXTURES = HERE.parent / "models" / "mixtures.py"
PRODUCTS = "let products = model.routed_mm\n"
SELECTION = 'let experts = model["mixture"] - model["mixture.router"]\n'
BY_BOTH = "mesh gpus(a = 2, b = 2)\nsplit products by experts into a\nsplit products by experts into b\n"
BY_BOTH_TURNED = "mesh gpus(a = 2, b = 2)\nsplit products by experts into b\nsplit products by experts into a\n"
PLANS = {
    "over_data": "mesh gpus(ep = 2)\nsplit products by experts into ep\nsplit model - products by batch into ep\n",
    "on_four": "mesh gpus(ep = 4)\nsplit products by experts into ep\nsplit model - products by batch into ep\n",
    "selection": "mesh gpus(ep = 2)\n" + SELECTION + "split experts by experts into ep\n"
    "split model - experts by batch into ep\n",
    "data_outside": "mesh gpus(dp = 2, ep = 2)\nsplit model by batch into dp\nsplit products by experts into ep\n"
    "split model - products by batch into ep\n",
    "data_inside": "mesh gpus(ep = 2, dp = 2)\nsplit products by experts into ep\n"
    "split model - products by batch into ep\nsplit model by batch into dp\n",
    "times_outside": "mesh gpus(ep = 2)\nsplit model by batch into m = 4\nsplit products by experts into ep\n"
    "split model - products by batch into ep\n",
    "times_inside": "mesh gpus(ep = 2)\nsplit products by experts into ep\nsplit model - products by batch into ep\n"
    "split model by batch into m = 2\n",
    "both_around": "mesh gpus(dp = 2, ep = 2)\nsplit model by batch into dp\nsplit products by experts into ep\n"
    "split model - products by batch into ep\nsplit model by batch into m = 2\n",
    "with_tp": "mesh gpus(ep = 2, tp = 2)\nsplit products by experts into ep\nsplit model - products by batch into ep\n"
    "split products by ffn into tp where possible\n",
    "tp_of_rows": "mesh gpus(tp = 2, ep = 2)\n" + SELECTION + "split model - experts by batch into tp\n"
    "split experts by experts into ep\nsplit model - experts by batch into ep\n",
    "two_axes": "mesh gpus(a = 2, b = 2)\nsplit products by experts into a\nsplit products by experts into b\n"
    "split model - products by batch into a\nsplit model - products by batch into b\n",
    "two_axes_turned": "mesh gpus(a = 2, b = 2)\nsplit products by experts into b\nsplit products by experts into a\n"
    "split model - products by batch into a\nsplit model - products by batch into b\n",
    "two_axes_folded": BY_BOTH + "split model - products by batch into a\nsplit model - products by seq into b\n",
    "two_axes_folded_turned": BY_BOTH_TURNED
    + "split model - products by seq into a\nsplit model - products by batch into b\n",
    "two_axes_of_ends": BY_BOTH
    + "split model - products by batch into a\nsplit model - products by seq into b parts [[0, 3], [1, 2]]\n",
    "two_axes_in_times": "split model by batch into m = 2\n"
    + BY_BOTH
    + "split model - products by batch into a\nsplit model - products by seq into b\n",
    "two_axes_of_tokens": SELECTION
    + BY_BOTH.replace("products", "experts")
    + "split model - experts by batch into a\nsplit model - experts by seq into b\n"
    "split experts by tokens into c = 2\n",
    "seq_inside": "mesh gpus(ep = 2, tp = 2)\nsplit products by experts into ep\n"
    "split model - products by seq into ep\nsplit products by ffn into tp where possible\n",
    "own_inside": "mesh gpus(a = 2, b = 2)\nsplit products by experts into a\nsplit products by experts into b\n"
    "split model - products by batch into a\n",
    "own_outside": "mesh gpus(a = 2, b = 2)\nsplit products by experts into b\nsplit products by experts into a\n"
    "split model - products by batch into a\n",
    "recomputed": "mesh gpus(ep = 2)\nsplit model by batch into m = 2\nsplit products by experts into ep\n"
    'split model - products by batch into ep\nrecompute model["mixture"]\n',
    "tokens": "mesh gpus(ep = 2)\n" + SELECTION + "split experts by experts into ep\n"
    "split model - experts by batch into ep\nsplit experts by tokens into c = 4\n",
    "tokens_first": "mesh gpus(ep = 2, dp = 2)\n" + SELECTION + "split experts by tokens into c = 2\n"
    "split model by batch into dp\nsplit experts by experts into ep\nsplit model - experts by batch into ep\n",
    "tokens_of_times": "mesh gpus(ep = 2)\n" + SELECTION + "split model by batch into m = 2\n"
    "split experts by experts into ep\nsplit model - experts by batch into ep\n"
    "split experts by tokens into c = 2\nrecompute experts\n",
    "tokens_and_router": "mesh gpus(ep = 2)\n" + SELECTION + "split experts by experts into ep\n"
    'split model - experts by batch into ep\nsplit model["mixture"] by tokens into c = 2\n',
    "tokens_ordered": "mesh gpus(ep = 2)\n" + SELECTION + "split experts by experts into ep\n"
    "split model - experts by batch into ep\nsplit experts by tokens into c = 2\n"
    "order products.fwd[c = 1] -> products.fwd[c = 0]\n",
    "sharded": "mesh gpus(ep = 2)\nsplit products by experts into ep\nsplit model - products by batch into ep\n"
    'split model["stem"].weights by row into ep\n',
}
MODELS = ("one", "two", "idle_expert", "idle_device", "dropped")
CASES = [("two", plan) for plan in PLANS]
CASES += [(model, plan) for model in MODELS for plan in ("over_data", "on_four", "both_around") if model != "two"]
PIPELINE = """
use pipeline: zb_h1

mesh gpus(pp = 2, ep = 2)

let products = model.routed_mm

split model by batch into m = 2
split products by experts into ep
split model - products by batch into ep
let stage = balance(model, 2)

assign stage[s] to gpus[pp = s] for s in 0..2
zb_h1(stage, 2)
"""


def text_of(plan: str) -> str:
    return f"{PRODUCTS}{PLANS[plan]}assign model to gpus\n"


def compiled(model: str, plan: str) -> Program:
    _, graph = captured(f"{MIXTURES}:{model}")
    return program_of_text(text_of(plan), graph)


def moved(program: Program) -> list[Conversion]:
    return [i for f in program.functions for i in f.body() if isinstance(i, Conversion) and len(i.also) == 2]


@pytest.mark.thinned(21)
@pytest.mark.parametrize(("model", "plan"), CASES)
def test_rows_come_back_as_they_went(model: str, plan: str) -> None:
    loaded, graph = captured(f"{MIXTURES}:{model}")
    outcome = try_plan(loaded, graph, text_of(plan), Training(2, lr=0.05))
    assert outcome.kind == "equal", outcome.text
    steps = [s for i in moved(compiled(model, plan)) for s in (*i.forward, *i.backward)]
    axes = 2 if plan.startswith("two_axes") else 1
    assert [type(s) for s in steps if isinstance(s, AllToAll)] == [AllToAll] * 4 * axes  # there and back, and gradients


@pytest.mark.thinned(11)
@pytest.mark.parametrize("plan", ["two_axes", "two_axes_folded_turned", "two_axes_turned", "two_axes_of_ends"])
def test_many_rows_travel_over_two_axes_at_once(plan: str) -> None:
    """Wherever each axis cuts them. One all_to_all over both axes sends fewer bytes than one over each axis, but has
    more rounds, so few rows travel along one axis after the other."""
    loaded, graph = captured(f"{MIXTURES}:many")
    outcome = try_plan(loaded, graph, text_of(plan), Training(2, lr=0.05))
    assert outcome.kind == "equal", outcome.text
    steps = [s for i in moved(compiled("many", plan)) for s in (*i.forward, *i.backward)]
    assert [s.axes for s in steps] == [("a", "b")] * 4


def test_a_folded_token_travels_once() -> None:
    """A device has a fourth of the tokens, sends them over both axes, and gathers none along either."""
    found = [c for c in communications(compiled("many", "two_axes_folded")) if "mixture" in c.of]
    rows = 256 * 256 * 8 * 4 // 4
    assert {(c.kind, c.over, c.size_bytes) for c in found if c.size_bytes >= rows} == {("all_to_all", ("a", "b"), rows)}
    assert {c.kind for c in found if c.when != "gradients"} == {"all_to_all"}


def test_rows_travel_in_a_pipeline_whose_backward_comes_in_halves() -> None:
    loaded, graph = captured(f"{MIXTURES}:two")
    outcome = try_plan(loaded, graph, PIPELINE, Training(2, lr=0.05))
    assert outcome.kind == "equal", outcome.text


def test_their_numbers_travel_once_each_way() -> None:
    """Of 64 rows a device of four has 16, and sends all but a fourth in a balanced routing; the counts go before."""
    program = compiled("two", "on_four")
    found = [(c.kind, c.when, c.size_bytes) for c in communications(program) if c.kind == "all_to_all"]
    rows, counts = 16 * 8 * 4, 4 * 2 * 8  # of width 8; of each expert and each of two samples
    assert sorted(found) == sorted(
        [("all_to_all", "forward", counts), *[("all_to_all", w, rows) for w in ("forward", "backward") for _ in "ab"]]
    )


@pytest.mark.parametrize(("chunks", "alike"), [("tokens", "selection"), ("tokens_and_router", "selection")])
def test_chunks_send_as_much_as_all_tokens_at_once(chunks: str, alike: str) -> None:
    """Of a device's four samples each chunk has some: the numbers of calls differ, their bytes do not."""
    sent = [[c for c in communications(compiled("two", p)) if c.kind == "all_to_all"] for p in (chunks, alike)]
    times = [sum(c.calls for c in one) for one in sent]
    assert times[0] == times[1] * (4 if chunks == "tokens" else 2)
    assert [(c.of, c.when, c.size_bytes) for c in sent[0]] == [(c.of, c.when, c.size_bytes) for c in sent[1]]


def test_folded_rows_of_another_batch() -> None:
    """Both cuts of the rows are those of training in a step with fewer samples."""
    text = "mesh gpus(a = 2, b = 2)\n" + 'let experts = model["experts"]\n' + "split experts by experts into a\n"
    text += "split experts by experts into b\nsplit model - experts by batch into a\n"
    text += "split model - experts by seq into b\nassign model to gpus\n"
    training = compile_source(Source("plan.ssp", text), captured("mixtral:tiny")[1], {}, None)
    assert len(moved(training.program)) == 8
    for batch in (4, 6):
        program = compile_resized(training, captured(f"mixtral:tiny,batch={batch}")[1]).program
        assert len(moved(program)) == 8


def test_the_tokens_of_another_batch_are_cut_less() -> None:
    """Six samples are three for each of two devices, which two chunks do not divide."""
    text = "mesh gpus(ep = 2)\n" + 'let experts = model["experts"]\n' + "split experts by experts into ep\n"
    text += "split model - experts by batch into ep\nsplit experts by tokens into c = 2\nassign model to gpus\n"
    training = compile_source(Source("plan.ssp", text), captured("mixtral:tiny")[1], {}, None)
    for batch, chunks in ((4, {("c", 2)}), (6, set())):
        program = compile_resized(training, captured(f"mixtral:tiny,batch={batch}")[1]).program
        assert {(t.name, t.parts) for f in program.functions for t in f.time} == chunks
        assert len(moved(program)) == 4


@pytest.mark.thinned(14)
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("two", "over_data"),
        ("two", "own_inside"),
        ("two", "tokens"),
        ("dropped", "both_around"),
        ("many", "two_axes"),
        ("many", "two_axes_folded"),
        ("two", "two_axes_of_ends"),
    ],
)
def test_wrong_programs_of_rows_that_travel_are_refuted(model: str, plan: str) -> None:
    """Numbers of the other end, of nothing, of another router; steps that are left out, or lead elsewhere."""
    program = compiled(model, plan)
    assert prove(program).failures == ()
    kinds = ("expert_counts_swapped", "rows_by_other_experts", "step_dropped", "step_of_another_kind", "split_dropped")
    found = list(mutants(program, (*kinds, "step_of_another_digit", "reshard_dropped", "step_of_another_group")))
    assert {m.kind for m in found} >= {*kinds[:2]}
    changed = (m for m in found if m.program != unshared(program))  # a step may have equal ends
    assert [str(m) for m in changed if not prove(m.program).failures] == []


def test_rows_do_not_go_where_those_of_another_router_go() -> None:
    """Two mixtures of one shape: the numbers of one fit the rows of the other in size alone."""
    _, graph = captured(f"{HERE.parent / 'ir' / 'models.py'}:two_routers")
    text = PRODUCTS + PLANS["over_data"] + "assign model to gpus\n"
    program = program_of_text(text, graph)
    assert len({i.also[0].value for i in moved(program)}) == 2
    found = [m for m in mutants(program, ("rows_by_other_experts",)) if "by nothing" not in m.where]
    assert len(found) >= 4
    assert [str(m) for m in found if not prove(m.program).failures] == []
