"""Tables and the program's text name the parts that a plan gives a place of their own."""

from ssdsl.compile import compile_source
from ssdsl.ir.text.program import program_text
from ssdsl.show.tables.communication import communication_view
from ssdsl.show.tables.operators import operators_view
from ssdsl.show.tables.tasks import functions_view
from ssdsl.text.source import Source
from tests.captured import graph_of

BOTH_WAYS = """
mesh gpus(pp = 2)
split model by batch into way = 2, m = 2
let stage = balance(model, 2)
assign stage[s][way = 0] to gpus[pp = s] for s in 0..2
assign stage[s][way = 1] to gpus[pp = 1 - s] for s in 0..2
"""


def test_parts_are_named_as_in_the_plan() -> None:
    program = compile_source(Source("plan.ssp", BOTH_WAYS), graph_of("tiny.py:chain"), {}, None).program
    operators = [row[0] for row in operators_view(program.plan).rows]
    assert {"layers.0.0[way = 0] linear", "layers.0.0[way = 1] linear"} <= {*operators}
    blocks = {row[3] for row in functions_view(program).rows}
    assert {"layers.0.0[way = 0] linear", "layers.0.0[way = 1] linear"} <= blocks
    assert any("[way = 1]" in str(row) for row in communication_view(program).rows)
    text = program_text(program)
    assert "\nfunction block0[way = 0] on gpus[pp = 0]" in text and "%linear_way1" in text
