"""An operator that runs beside another one has all that the plan says of that one: no statement is forgotten."""

from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.neighbours.carry_over import carry_over
from ssdsl.plan.plan import OpPlan, Plan
from ssdsl.record import replace
from ssdsl.text.source import Source
from tests.captured import graph_of

TESTS = Path(__file__).parent.parent
STAGES = """
mesh gpus(pp = 2)
let stage = [model["first"] | model["second"], model["third"] | model["fourth"]]
assign stage[s] to gpus[pp = s] for s in 0..2
split model by batch into m = 2
order stage[1].bwd[m = 0] -> stage[0].fwd[m = 1]
recompute [stage[1]]
recompute stage[1].gathers
prefetch stage[1] by 3
"""
EXPERTS = """
mesh gpus(ep = 2)
split model by batch into m = 2
split model by experts into ep
assign model to gpus
order model.fwd[m = 0] -> model.fwd[m = 1]
recompute [model]
recompute model.gathers
prefetch model by 3
"""
JUDGES = """
mesh gpus(pp = 2)
assign model["whole"] to gpus[pp = 0]
assign model["each"] to gpus[pp = 1]
order model["whole"].fwd -> model["each"].fwd
"""


def plan_of(text: str, graph: Graph) -> Plan:
    return interpret_all(parse(Source("plan.ssp", text)), graph)[0]


def said(record: OpPlan) -> OpPlan:
    """All of a record but how the operator is cut."""
    return replace(record, indices=(), whole=())


@pytest.fixture(scope="module")
def rooted() -> Graph:
    return graph_of(f"{TESTS}/models/rooted.py:rooted")


def test_what_the_model_calls_itself(rooted: Graph) -> None:
    plan = plan_of(STAGES, rooted)
    host = next(o for o in rooted.operators if o.module == "fourth")
    behind = [o for o in rooted.operators if o.path == "" and said(plan.of(o.name)) == said(plan.of(host.name))]
    assert [o.kind for o in behind] == ["gelu", "add", "sub", "pow", "sum", "div"]
    record = plan.of(host.name)
    assert record.checkpoint and record.regathers and record.ahead and record.ahead.value == 3 and record.sets


def test_the_last_of_its_operands_is_made_last_by_an_operator_that_has_a_place() -> None:
    graph = graph_of(f"{TESTS}/models/rooted.py:judged")
    plan = plan_of(JUDGES, graph)
    (sub,) = (o for o in graph.operators if o.kind == "sub")
    assert str(plan.of(sub.name).place) == "gpus[pp = 1]"  # of `each`: the reshape of `whole` behind it is not later
    lower(plan)


def test_what_brings_rows_to_their_experts(rooted: Graph) -> None:
    graph = graph_of(f"{TESTS}/ir/models.py:experts")
    plan = lower(plan_of(EXPERTS, graph)).plan
    added = [o for o in plan.graph.operators if o.kind in ("dispatch", "count_rows", "combine")]
    host = next(o for o in plan.graph.operators if o.kind == "expert_mm")
    assert len(added) == 3 and all(said(plan.of(o.name)) == said(plan.of(host.name)) for o in added)


def test_what_has_no_twin_in_another_graph(rooted: Graph) -> None:
    plan = plan_of(STAGES, rooted)
    last = rooted.operators[-1]
    renamed = replace(rooted, operators=(*rooted.operators[:-1], replace(last, kind="divided")))
    carried = carry_over(plan, renamed, trains=True)
    assert said(carried.of(last.name)) == said(plan.of(rooted.operators[-2].name))
