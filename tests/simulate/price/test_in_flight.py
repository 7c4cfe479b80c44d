"""A device waits for what a section has in flight where computing in between is too short, forward and backward."""

import pytest

from ssdsl.analyse.gathers import NONE_STAY
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.load import load_cluster
from ssdsl.ir.function import Conversion, Section
from ssdsl.ir.program import Compute
from ssdsl.ir.uses import InstrPlace
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.in_flight import CallOf, Pass, events
from ssdsl.simulate.price.overlap import Awaits, Begins, Computes
from ssdsl.simulate.price.roofline import Roofline
from tests.ir.conftest import _program

SECTION = Section("", False, _program("beside").functions[0].sections[0].body, in_flight=((3, 5),))
FUNCTION = replace(_program("beside").functions[0], sections=(SECTION,))
SUM = CallOf(InstrPlace(0, 5), 0, 0)


def test_forward_starts_and_waits_as_the_section_says() -> None:
    found = [*events(FUNCTION, [[Pass({2: 1.0, 3: 2.0, 6: 4.0}, {5: [("tp", 3.0)]}, is_backward=False)]], None)]
    assert found == [Computes(1.0), Begins(SUM, "tp", 3.0), Computes(2.0), Awaits(SUM), Computes(4.0)]


def test_backward_is_the_mirror() -> None:
    found = [*events(FUNCTION, [[Pass({2: 1.0, 3: 2.0, 6: 4.0}, {5: [("tp", 3.0)]}, is_backward=True)]], None)]
    assert found == [Computes(4.0), Begins(SUM, "tp", 3.0), Computes(2.0), Awaits(SUM), Computes(1.0)]


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_the_device_computes_meanwhile_is_hidden(overlaps: bool) -> None:
    program = _program("beside")
    cluster = load_cluster("h200x8")
    cluster = replace(cluster, overlap=replace(cluster.overlap, gradients=overlaps))
    facts = ProgramIndex.on(program, cluster)
    costs, function, (role,) = Roofline(facts, cluster, Fusion(facts)), program.functions[0], program.roles
    (awaited,) = (wait for _, wait in function.sections[0].in_flight)
    assert isinstance(function.sections[0].body[awaited], Conversion)
    cost = costs._compute(function, Phase.FORWARD, NONE_STAY, role)
    (call, seconds), *_ = costs.exposed(Compute(function.number, (), Phase.FORWARD), role)
    alone = costs.network.collective(call.call, function.submesh).communication_s
    assert seconds == pytest.approx(cost.communication_s)
    assert cost.communication_s + cost.hidden_s == pytest.approx(alone)
    assert (cost.hidden_s > 0.0) is overlaps
