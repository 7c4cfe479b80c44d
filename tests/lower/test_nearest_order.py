"""The help of a cycle of tasks names changes of the plan; each of them makes a plan that trains as one device."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import captured
from tests.lower.follow import changes, followed

PIPELINE = """\
use pipeline: one_f_one_b
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by batch into m = 4
assign stage[s] to gpus[pp = s] for s in 0..2
"""
CLOCK = """\
order by clock for s in 0..2, m in 0..4:
    stage[s].fwd[m = m] at {fwd}
    stage[s].bwd[m = m] at {bwd}
"""
CASES = {  # what a plan says, and what its help says to write instead
    "order stage[1].fwd -> stage[0].fwd\n": ["order stage[0].fwd -> stage[1].fwd", ""],
    "order stage[1].bwd[m = 3] -> stage[0].fwd[m = 3]\n": ["order stage[0].fwd[m = 3] -> stage[1].bwd[m = 3]", ""],
    "order stage[1].bwd[m = m] -> stage[0].fwd[m = m] for m in 0..4\n": [
        "order stage[1].bwd[m = m] -> stage[0].fwd[m = m + 1]",
        "",
    ],
    "order stage[0].fwd[m = 1] -> stage[0].fwd[m = 2]\norder stage[0].fwd[m = 2] -> stage[0].fwd[m = 1]\n": [
        "order stage[0].fwd[m = 1] -> stage[0].fwd[m = 3]",
        "",
    ],
    "order stage[0].fwd[m = 0] -> stage[1].bwd[m = 0] -> stage[0].fwd[m = 0]\n": [""],
    CLOCK.format(fwd="2 * m", bwd="2 * m - s"): ["stage[s].fwd[m = m] at 2 * m - 1", ""],
    CLOCK.format(fwd="2 * m", bwd="2 * m - 1 if s == 1 else 2 * m + 3"): ["stage[s].fwd[m = m] at 2 * m - 1", ""],
    CLOCK.format(fwd="3 * m", bwd="3 * m - 8"): ["stage[s].bwd[m = m] at 3 * m", ""],
    "def mine(half):\n    order half[1].bwd[m = 0] -> half[0].fwd[m = 0]\n    order half[0].fwd -> half[0].bwd\n"
    "mine(stage)\n": ["order half[1].bwd[m = 0] -> half[0].fwd[m = 1]", ""],
    "one_f_one_b([stage[1], stage[0]], 4)\n": [""],
}


@pytest.mark.parametrize(("said", "then"), CASES.items(), ids=range(len(CASES)))
def test_changes_that_a_cycle_names(said: str, then: list[str]) -> None:
    model, graph = captured("tiny.py:chain")
    with pytest.raises(PlanError) as raised:
        compile_source(Source("plan.ssp", PIPELINE + said), graph, {}, None)
    (diagnostic,) = raised.value.diagnostics
    shown = diagnostic.text(diagnostic.help)
    assert diagnostic.code == "E0403" and [new for _, new, _, _ in changes(shown)] == then
    for number in range(len(then)):
        outcome = try_plan(model, graph, followed(PIPELINE + said, shown, number), Training(1, lr=0.02))
        assert outcome.kind == "equal", outcome.text
