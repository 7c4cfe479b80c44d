"""The tables of `ssdsl check`."""

import pytest

from ssdsl.compile import compile_source
from ssdsl.show.tables.check import roles_view
from ssdsl.text.source import Source
from tests.captured import graph_of

INTERLACED = """
mesh gpus(pp = 2)
let ends = model["wte"] | model["lm_head"]
let stage = balance(model - ends, 2)
split ends by vocab into pp
assign ends to gpus
assign stage[s] to gpus[pp = s] for s in 0..2
"""


def test_roles_share_the_work_that_is_cut_over_them() -> None:
    program = compile_source(Source("plan.ssp", INTERLACED), graph_of("gpt:tiny"), {}, None).program
    shares = [row[3] for row in roles_view(program).rows]
    assert shares == pytest.approx([0.5, 0.5], abs=0.01)
