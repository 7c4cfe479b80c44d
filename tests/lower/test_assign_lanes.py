"""`assign_lanes`: in which queue a message travels, so that nothing else waits behind it."""

from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Role
from ssdsl.lower.tasks.assign_lanes import MOST_LANES, assign_lanes
from ssdsl.plan.plan import Mesh
from ssdsl.record import replace
from tests.lower.by_hand import submesh
from tests.lower.stages import pipeline, transfer


def lanes(stages: int, *pairs: tuple[int, int]) -> list[int]:
    return [m.lane for m in assign_lanes(pipeline(stages, 1, [*pairs])).messages]


def test_messages_from_a_stage_and_to_it_are_in_two_lanes() -> None:
    assert lanes(4, (0, 1), (1, 2), (2, 3)) == [0, 1, 0]


def test_messages_between_the_same_roles_share_a_lane() -> None:
    assert lanes(2, (0, 1), (0, 1), (0, 1)) == [0, 0, 0]


def test_the_way_back_has_a_lane_of_its_own() -> None:
    assert lanes(2, (0, 1), (1, 0)) == [0, 1]


def test_a_role_has_one_peer_in_a_lane() -> None:
    assert lanes(3, (0, 1), (0, 2)) == [0, 1] and lanes(3, (0, 2), (1, 2)) == [0, 1]


def test_messages_that_find_no_lane_share_the_last_one() -> None:
    found = assign_lanes(pipeline(8, 1, [(0, stage) for stage in range(1, 8)]))
    assert [m.lane for m in found.messages] == [0, 1, 2, 3, MOST_LANES, MOST_LANES, MOST_LANES]


def test_a_message_that_a_role_both_sends_and_receives_is_in_the_shared_lane() -> None:
    """From all devices to the first stage: the devices of the first stage are at both ends."""
    axes = {"pp": 2}
    lowering = pipeline(2, 1, [])
    both = replace(transfer(0, 0, 0, axes), source=submesh(axes), target=submesh(axes, pp=0))
    found = assign_lanes(replace(lowering, messages=(both, transfer(1, 0, 1, axes))))
    assert [m.lane for m in found.messages] == [1, 0]


def test_all_roles_on_the_devices_of_an_end_are_its_peers() -> None:
    """The first message reaches both roles of the other mesh: one of them cannot have another sender in its lane."""
    here, there = Mesh("here", (("pp", 2),), 0), Mesh("there", (("pp", 2),), 2)
    stages = [Submesh(mesh, (("pp", stage),)) for mesh in (here, there) for stage in (0, 1)]
    roles = tuple(Role(str(stage), stage, ()) for stage in stages)
    wide, narrow = (transfer(number, 0, 1, {"pp": 2}) for number in (0, 1))
    messages = (
        replace(wide, source=stages[0], target=Submesh(there)),
        replace(narrow, source=stages[1], target=stages[3]),
    )
    first, second = assign_lanes(replace(pipeline(2, 1, []), roles=roles, messages=messages)).messages
    assert first.lane != second.lane
