"""Gives messages their lanes: queues in which they travel, so that receives may be posted when there are buffers.

A device carries out the messages of one lane one after another (a process group of NCCL is a queue), so a lane keeps
one order on every device. Where a role only sends to one other in a lane, or only receives from one, nothing else waits
behind a receive that is posted long before its value is sent, nor behind a send whose receive is posted late.
"""

from dataclasses import replace

from ssdsl.ir.program import Members
from ssdsl.lower.lowering import Lowering

MOST_LANES = 4  # and one that takes what is left; each is two process groups of all ranks, for values and for gradients

Roles = tuple[int, ...]
Peers = dict[tuple[int, bool], Roles]  # whom a role sends to in a lane (True), and whom it receives from


def assign_lanes(lowering: Lowering) -> Lowering:
    """Each message in the first lane in which its roles have no other peers; what finds none shares a lane."""
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


def shared_lanes(lowering: Lowering) -> frozenset[int]:
    """The lanes in which a role has several peers."""
    lanes: dict[int, Peers] = {}
    shared = set()
    members = Members(lowering.roles)
    for message in lowering.messages:
        source, target = members.ends(message, gradient=False)
        peers = lanes.setdefault(message.lane, {})
        if not _fits(peers, source, target):
            shared.add(message.lane)
        peers |= _peers(source, target)
    return frozenset(shared)


def _fits(peers: Peers, source: Roles, target: Roles) -> bool:
    """Whether these send to nobody else, and do not receive, and those the other way round."""
    wanted = _peers(source, target)
    both = any((role, not sends) in wanted or (role, not sends) in peers for role, sends in wanted)
    return not both and all(peers.get(end, others) == others for end, others in wanted.items())


def _peers(source: Roles, target: Roles) -> Peers:
    return {(r, True): target for r in source} | {(r, False): source for r in target}
