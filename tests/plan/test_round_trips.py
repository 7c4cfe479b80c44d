"""E0281: a statement that assigns nothing but what the model itself calls is left out as a whole."""

import pytest

from ssdsl.lang.parse import parse
from ssdsl.plan.errors.place import RoundTrip
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """\
mesh gpus(pp = 2)
{}
"""
ALONE = """\
assign model - model["h.0."] to gpus[pp = 0]
assign model["h.0."] to gpus[pp = 1]"""
MORE = """\
let second = model["h.0."] | model["ln_f"]
assign model - second to gpus[pp = 0]
assign second to gpus[pp = 1]"""


@pytest.mark.parametrize(("statements", "is_all"), [(ALONE, True), (MORE, False)])
def test_the_change_leaves_something_to_assign(statements: str, is_all: bool) -> None:
    _, warnings = interpret_all(parse(Source("plan.ssp", PLAN.format(statements))), graph_of("gpt:tiny"))
    (found,) = (w for w in warnings if isinstance(w, RoundTrip))
    assert found.is_all == is_all and ("leave the statement out" in found.change) == is_all
