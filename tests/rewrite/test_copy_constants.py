"""`copy_constants`: what repeats a constant is computed in each place that reads it, unless a plan assigns it alone."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import Program
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.signatures import signatures
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.rewrite.copy_constants import copy_constants
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured
from tests.lower.by_hand import graph_of, plan_of, saying

SIZES = {"batch": 8, "in": 4, "out": 6}
MASKED = """
    input x[batch, in]
    weight w[in, out]
    weight v[out, in]
    constant c[out, batch]
    mask[out, batch] = relu c[out, batch]
    view[batch, out] = t mask[out, batch]
    y[batch, out] = mm x[batch, in] w[in, out]
    z[batch, out] = add y[batch, out] view[batch, out]
    u[batch, in] = mm z[batch, out] v[out, in]
    t[batch, out] = mm u[batch, in] w[in, out]
    s[batch, out] = add t[batch, out] view[batch, out]
    loss[] = sum s[batch, out]
"""
FIRST, SECOND = ("pp", 0), ("pp", 1)
STAGES = dict.fromkeys(("mask", "view", "y", "z"), FIRST) | dict.fromkeys(("u", "t", "s", "loss"), SECOND)
LAYERS = f"{Path(__file__).parent.parent}/models/repeated.py:repeated"
STAGED = """
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = [model["embed"] | model["layers.0"], model["layers.1"] | model["head"]]
let mask = model.expand | model.cumsum | model.mul
assign stage[0] to gpus[pp = 0]
"""


def masked(places: dict[str, tuple[str, int]] = STAGES) -> Plan:
    return plan_of(graph_of(MASKED, **SIZES), {"pp": 2}, {"batch": "m 2"}, places)


def sent(program: Program) -> set[str]:
    """The values that are sent forward."""
    return {m.value for m in program.messages if isinstance(m, Transfer)}


def reads(graph: Graph, operator: str) -> list[str]:
    return [o.value for o in graph.by_name[operator].inputs]


def test_each_place_that_reads_it_has_its_own() -> None:
    found = copy_constants(masked())
    graph = found.graph
    assert [o.name for o in graph.operators][:4] == ["mask", "mask_copy2", "view", "view_copy2"]
    assert reads(graph, "z") == ["y", "view"] and reads(graph, "s") == ["t", "view_copy2"]
    assert reads(graph, "view_copy2") == ["mask_copy2"] and graph.by_name["s"].args[2].value == "view_copy2"
    assert graph.storages["view_copy2"].root == "mask_copy2" and graph.storages["view"].root == "mask"
    for name in ("mask_copy2", "view_copy2"):
        assert found.of(name).home == found.of("s").home
        assert [(i.name, i.digit.parts) for i in found.of(name).indices] == [("m", 2)]


def test_copies_and_their_readers_keep_their_signatures() -> None:
    text = f"{STAGED}assign model - stage[0] to gpus[pp = 1]"
    for plan in (masked(), interpret_all(parse(Source("plan.ssp", text)), captured(LAYERS)[1])[0]):
        graph = copy_constants(plan).graph
        anew = replace(graph, operators=tuple(replace(o, signature=None) for o in graph.operators))
        known, found = graph.signatures, signatures(anew)
        assert graph is not plan.graph and known.keys() == found.keys()
        pairs = {(known[name], found[name]) for name in known}
        assert len(pairs) == len({*known.values()}) == len({*found.values()})


def test_it_moves_where_only_others_read_it() -> None:
    found = copy_constants(masked(STAGES | dict.fromkeys(("y", "z"), SECOND)))
    assert [o.name for o in found.graph.operators] == [o.name for o in masked().graph.operators]
    assert found.of("mask").home == found.of("view").home == found.of("z").home


def test_nothing_changes_where_its_readers_are_in_its_place() -> None:
    plan = masked(dict.fromkeys(STAGES, FIRST))
    assert copy_constants(plan) is plan


def test_it_stays_where_a_statement_places_nothing_else() -> None:
    plan = saying(masked(), "mask", stays=True)
    found = copy_constants(plan)
    assert reads(found.graph, "view_copy2") == ["mask"] and found.of("mask") is plan.of("mask")


def test_results_that_are_asked_for_stay() -> None:
    plan = masked()
    plan.graph.outputs["seen"] = "view"
    found = copy_constants(plan)
    assert reads(found.graph, "s") == ["t", "view"]


def test_what_depends_on_weights_or_inputs_is_no_constant() -> None:
    assert masked().graph.repeated == {"mask", "view"}


def test_no_message_carries_a_mask_between_the_stages_of_a_pipeline() -> None:
    text = f"{STAGED}assign model - stage[0] to gpus[pp = 1]"
    program = lower(interpret_all(parse(Source("plan.ssp", text)), captured(LAYERS)[1])[0])
    assert len(sent(program)) == 1 and not prove(program).failures


@pytest.mark.parametrize("axes", ["pp = 2", "pp = 2, dp = 2"])
def test_a_pipeline_with_its_own_masks_equals_one_device(axes: str) -> None:
    model, graph = captured(LAYERS)
    text = f"{STAGED}assign model - stage[0] to gpus[pp = 1]".replace("pp = 2", axes)
    text = text.replace("m = 2", "dp, m = 2") if "dp" in axes else text
    outcome = try_plan(model, graph, text, Training(2, optimizer="adamw", lr=0.05))
    assert outcome.kind == "equal", outcome.text


def test_a_plan_that_assigns_a_mask_by_itself_sends_it() -> None:
    text = f"{STAGED}assign mask to gpus[pp = 0]\nassign model - stage[0] - mask to gpus[pp = 1]"
    plan = interpret_all(parse(Source("plan.ssp", text)), captured(LAYERS)[1])[0]
    assert {name for name, record in plan.operators.items() if record.stays} == plan.graph.repeated
    assert len(sent(program := lower(plan))) == 2 and not prove(program).failures
