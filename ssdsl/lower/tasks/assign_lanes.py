"""Gives each message a lane, the queue in which it travels, so that receives can be posted once there are buffers.

A device carries out the messages of one lane one after another (a process group of NCCL is a queue), so a lane has the
same order on every device. If a role in a lane only sends to one other role, or only receives from one, nothing else
waits after a receive that is posted long before its value is sent, nor after a send whose receive is posted late.
"""

from ssdsl.ir.program import Members
from ssdsl.lower.stages import Scheduled
from ssdsl.record import replace

MOST_LANES = 4  # and one for the rest; each lane is two process groups of all ranks, for values and for gradients

Roles = tuple[int, ...]
Peers = dict[tuple[int, bool], Roles]  # in one lane: the roles to which a role sends (True), and from which it receives


def assign_lanes(lowering: Scheduled) -> Scheduled:
    """Sets the lane of each message: the first one in which its roles have no other peers. Messages that find none
    share the last lane."""
    lanes: list[Peers] = []
    placed: dict[int, int] = {}
    members = Members(lowering.roles)
    for message in lowering.messages:
        source, target = members.ends(message, gradient=False)
        lane = next((k for k, peers in enumerate(lanes) if _fits(peers, source, target)), len(lanes))
        if lane == len(lanes):
            if lane == MOST_LANES or not _fits({}, source, target):
                continue
            lanes.append({})
        lanes[lane] |= _peers(source, target)
        placed[message.number] = lane
    messages = tuple(replace(m, lane=placed.get(m.number, len(lanes))) for m in lowering.messages)
    return replace(lowering, messages=messages)


def _fits(peers: Peers, source: Roles, target: Roles) -> bool:
    """Whether, in a lane with these peers, the sources would send to the targets only and not receive, and the targets
    receive from the sources only and not send."""
    wanted = _peers(source, target)
    both = any((role, not sends) in wanted or (role, not sends) in peers for role, sends in wanted)
    return not both and all(peers.get(end, others) == others for end, others in wanted.items())


def _peers(source: Roles, target: Roles) -> Peers:
    return {(r, True): target for r in source} | {(r, False): source for r in target}
