"""Mixtures of experts, in process, against one device: routers with and without a capacity, and where experts lie.

The routers' losses are made large, so that a factor in them, or in their gradients, would be seen.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.runtime.options import Training
from ssdsl.show.tables.communication import communications
from tests.prove.mutations import mutants
from tests.verify.conftest import HERE, captured, program_of_text

EXPERTS = {"moe_gpt": "blocks.*.ffn.experts", "mixtral": "model.layers.*.mlp.experts"}
MODELS = {
    "switch": "moe_gpt:tiny,balance=0.5,z=0.1",
    "dropped": "moe_gpt:tiny,capacity_percent=50,balance=0.5",
    "batch": "moe_gpt:tiny,group=batch,balance=0.5,z=0.1",
    "gshard": "moe_gpt:tiny,top=2,capacity_percent=75,balance=0.5",
    "shared": "moe_gpt:tiny,shared=1,z=0.1",
    "mixtral": "mixtral:tiny,balance=0.5",
}
PLANS = {
    "own": "mesh gpus(ep = 2)\nsplit model by experts into ep\n",
    "beside_data": "mesh gpus(dp = 2, ep = 2)\nsplit model by batch into dp\nsplit model by experts into ep\n",
    "over_data": "mesh gpus(ep = 2)\nsplit experts by experts into ep\nsplit model - experts by batch into ep\n",
    "over_data_with_tp": "mesh gpus(ep = 2, tp = 2)\nsplit experts by experts into ep\n"
    "split model - experts by batch into ep\nsplit experts by ffn into tp\n",
    "within": "mesh gpus(ep = 2, tp = 2)\nsplit model by experts into ep\nsplit model by ffn into tp\n",
    "of_micro_batches": "mesh gpus(ep = 2)\nsplit model by batch into m = 2\nsplit experts by experts into ep\n"
    "split model - experts by batch into ep\n",
    "products_over_data": "mesh gpus(ep = 2)\nlet products = experts.routed_mm | experts.transpose\n"
    "split products by experts into ep\nsplit model - products by batch into ep\n",
    "recomputed": "mesh gpus(ep = 2)\nsplit model by batch into m = 2\nsplit model by experts into ep\n"
    "recompute experts\n",
    "sharded": "mesh gpus(dp = 2, ep = 2)\nsplit model by batch into dp\nsplit model by experts into ep\n"
    "split model.weights by row into dp\n",
    "unequal": "mesh gpus(ep = 3)\nsplit model by experts into ep = [2, 1, 1]\n",
}


PIPELINE = """
use pipeline: zb_h1

mesh gpus(pp = 2, ep = 2)

split model by batch into m = 4
split model by experts into ep
let stage = balance(model, 2)

assign stage[s] to gpus[pp = s] for s in 0..2
zb_h1(stage, 4)
"""


def text_of(name: str, plan: str) -> str:
    of = EXPERTS[MODELS[name].partition(":")[0]]
    return f'let experts = model["{of}"]\n{PLANS[plan]}assign model to gpus\n'


def tried(name: str, plan: str, optimizer: str = "sgd") -> Outcome:
    model, graph = captured(MODELS[name])
    return try_plan(model, graph, text_of(name, plan), Training(2, optimizer=optimizer, lr=0.05))


def compiled(name: str, plan: str) -> Program:
    _, graph = captured(MODELS[name])
    return program_of_text(text_of(name, plan), graph)


CASES = [(name, plan) for name in MODELS for plan in PLANS if name == "mixtral" or plan != "products_over_data"]


@pytest.mark.thinned(36)
@pytest.mark.parametrize(("name", "plan"), CASES)
def test_mixtures(name: str, plan: str) -> None:
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


IN_TURN = """
mesh gpus(ep = 2)
let experts = model["model.layers.*.mlp.experts"]
let products = experts.routed_mm | experts.transpose | experts.split | experts.silu
split model by batch into m = 2
split experts by experts into ep
split model - experts by batch into ep
{more}
assign model to gpus
order products.fwd -> products.bwd
"""


@pytest.mark.parametrize("more", ["", "recompute products", "split model.weights by row into ep"])
def test_rows_travel_beside_another_micro_batch(more: str) -> None:
    model, graph = captured(MODELS["mixtral"])
    text = IN_TURN.format(more=more)
    in_flight = [o for f in program_of_text(text, graph).functions for o in f.outputs if o.in_flight and o.gradient]
    assert len(in_flight) == 4  # to the experts of each layer, and back
    outcome = try_plan(model, graph, text, Training(2, lr=0.05))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["gshard", "mixtral"])
def test_state_of_experts(name: str) -> None:
    outcome = tried(name, "over_data_with_tp", "adamw")
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["switch", "mixtral"])
def test_gradients_of_routers_have_the_losses_of_routers(name: str) -> None:
    """What is compared above depends on them: without them a router's gradient is another."""
    with_losses, _ = captured(MODELS[name])
    without, _ = captured("moe_gpt:tiny,balance=0,z=0" if name == "switch" else "mixtral:tiny,balance=0")
    router = next(n for n, _ in without.module.named_parameters() if "router" in n or "mlp.gate" in n)
    found = []
    for model in (with_losses, without):
        weight = model.module.get_parameter(router)
        (gradient,) = torch.autograd.grad(model.compute(model.batches[0]), weight)
        found.append(gradient)
    assert (found[0] - found[1]).norm() > 0.1 * found[1].norm()


def test_experts_in_a_pipeline_whose_backward_comes_in_halves() -> None:
    model, graph = captured("mixtral:tiny,balance=0")
    outcome = try_plan(model, graph, PIPELINE, Training(2, lr=0.05))
    assert outcome.kind == "equal", outcome.text


# -- rows of a router without a capacity lie with their experts --------------------------------------------------------

ROWS, HIDDEN = 8 * 16 * 2, 32  # of mixtral:tiny: two rows for each token


@pytest.mark.parametrize("plan", [p for p in PLANS if p != "unequal"])
def test_no_device_has_the_rows_of_all_experts(plan: str) -> None:
    """What is between the products has the rows of the part's experts, in a balanced routing half of them."""
    program = compiled("mixtral", plan)
    parts = 1
    for coordinate in ("batch into dp", "batch into m"):
        parts *= 2 if coordinate in PLANS[plan] else 1
    products = [op for f in program.functions for op in f.operators() if "silu" in op.operator]
    assert len(products) == 2
    assert {op.results[0].shape[0].known for op in products} == {ROWS // parts // 2}


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        ("own", ["all_reduce forward", "all_reduce backward"]),
        (
            "over_data",
            ["all_to_all forward", "all_to_all forward", "all_to_all backward", "all_to_all backward"],
        ),
    ],
)
def test_tokens_travel_once_each_way(plan: str, wanted: list[str]) -> None:
    """Of each layer a token as it is, and the sum of what its experts make of it; nothing in the experts' width."""
    found = [c for c in communications(compiled("mixtral", plan)) if "mlp" in c.of and c.when != "gradients"]
    large = [c for c in found if c.size_bytes >= ROWS * HIDDEN]
    assert sorted(f"{c.kind} {c.when}" for c in large) == sorted(wanted * 2)
    assert {c.size_bytes for c in large} == {ROWS // 2 * HIDDEN * 4}


def test_rows_that_no_number_of_experts_divides_stay_where_they_are() -> None:
    """Three experts of 256 rows have no equal number: the products have all rows, and their parts add up."""
    model, graph = captured("mixtral:tiny,experts=3")
    text = text_of("mixtral", "own").replace("ep = 2", "ep = 3")
    assert try_plan(model, graph, text, Training(2, lr=0.05)).kind == "equal"
    program = program_of_text(text, graph)
    assert not any(o.kind == "dispatch" for o in program.graph.operators)


def test_rows_that_go_to_the_experts_of_two_routers() -> None:
    model, graph = captured(f"{HERE.parent / 'ir' / 'models.py'}:two_routers")
    text = "mesh gpus(ep = 2)\nsplit model by experts into ep\nassign model to gpus\n"
    assert try_plan(model, graph, text, Training(2, lr=0.05)).kind == "equal"
    program = program_of_text(text, graph)
    assert sum(o.kind == "dispatch" for o in program.graph.operators) == 2  # each of the same tokens
    assert sum(o.kind == "count_rows" for o in program.graph.operators) == 2
    assert sum(o.kind == "combine" for o in program.graph.operators) == 2


def test_wrong_programs_of_rows_at_experts_are_refuted() -> None:
    """Of experts of other parts, of other weights than those of the rows, of rows that are not put back by all."""
    program = compiled("mixtral", "over_data")
    assert prove(program).failures == ()
    kinds = ("split_dropped", "split_changed", "reshard_dropped", "step_dropped", "kernel_changed")
    found = [m for m in mutants(program, kinds) if any(w in m.where for w in ("experts", "mm", "dispatch", "combine"))]
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []


@pytest.mark.covering
@pytest.mark.parametrize("model", ["moe_gpt:tiny,balance=0.5", "mixtral:tiny"])
@pytest.mark.parametrize("params", [{}, {"T": 2}, {"D": 2}], ids=str)
def test_the_example(program: Callable[..., Any], model: str, params: dict[str, int]) -> None:
    program("experts", model, **params).verify()


@pytest.mark.slow
def test_the_example_on_processes(program: Callable[..., Any]) -> None:
    """What a device receives of others is known when it runs: the transport has to carry it."""
    program("experts", "mixtral:tiny").verify_processes()
