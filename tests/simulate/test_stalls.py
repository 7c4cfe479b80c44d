"""What devices wait for: the messages that hold up a role, also where it waits for a role that waits for them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.ir.execute import ActionPart
from ssdsl.ir.program import Compute
from ssdsl.plan.plan import Phase
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.run import run
from ssdsl.simulate.stalls import delays_by_message
from tests.simulate.steps import compiled
from tests.simulate.test_links import program_of
from tests.simulate.test_step import CHAIN, PIPELINES, measured


def test_the_last_stage_waits_for_the_slow_link_in_front_of_the_one_before() -> None:
    """Of three stages with one micro-batch, all but the computing of others is waiting for one of the four messages."""
    program = compiled("pipeline", CHAIN, S=3, M=1).program
    slow = next(m.number for m in program.messages if program.functions[m.producer].stage == 0)
    costs = Measured(program, Times(1.0, 1.0, 1.0, 0.5, transfers={f"{slow}.fwd": 10.0}))
    first, _, last = delays_by_message(run(program, costs))
    assert last == pytest.approx({(slow, False): 10.0, (1 - slow, False): 0.5})
    assert first == pytest.approx(last | {(slow, True): 0.5, (1 - slow, True): 0.5})


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PIPELINES.keys() - {"halves"})), st.data())
def test_no_more_than_a_role_waits(plan: str, data: st.DataObject) -> None:
    """A role is not held up while it computes, and waits for nothing but messages where nobody computes."""
    program = program_of(plan, 4, 8)
    trace = run(program, data.draw(measured(program)))
    for r, delays in enumerate(delays_by_message(trace)):
        busy = sum(x.end - x.start for x in trace.intervals if x.role == r and x.part is ActionPart.RUN)
        assert 0 <= sum(delays.values()) <= (trace.ended[r] - busy) * (1 + 1e-9)
    transfers = {f"{m.number}.{p}": data.draw(st.floats(0.1, 9.0)) for m in program.messages for p in Phase}
    idle = run(program, Measured(program, Times(transfers=transfers)))
    assert any(isinstance(x.action, Compute) for x in idle.intervals)
    for delays, ended in zip(delays_by_message(idle), idle.ended, strict=True):
        assert sum(delays.values()) == pytest.approx(ended)
