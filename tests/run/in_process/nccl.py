"""A transport of threads that waits where NCCL does.

NCCL knows no tags: between two ranks of a group, sends meet receives in their order. A group's calls run one after
another on each rank: a call is done when its ends are the first in the queues of both ranks. The first call between two
ranks, or of a collective, connects them, and returns when all of them have made it.
"""

from collections import deque
from dataclasses import dataclass, field

import torch

from ssdsl.run.in_process.mailbox import Mailboxes, Meeting, RankGroup, Threaded
from ssdsl.runtime.ranks.transport import Ends, Exchange


@dataclass(eq=False)
class End:
    """One end of a message: this rank sends to the peer, or receives from it."""

    sends: bool
    peer: int
    tag: int
    tensor: torch.Tensor


@dataclass(eq=False)
class Call:
    """Messages of one rank that start together; also the work object."""

    rank: int
    transport: "Nccl"
    left: list[End]

    def is_completed(self) -> bool:
        return not self.left

    def wait(self) -> None:
        self.transport.shared.wait(self.rank, self.is_completed, lambda: f"{len(self.left)} messages")


@dataclass(eq=False)
class Queues:
    """The calls of all ranks, by group and rank, that are not done; and which ends each rank has had so far."""

    calls: dict[tuple[int, int], deque[Call]] = field(default_factory=dict)
    had: set[tuple[int, int, bool, int]] = field(default_factory=set)

    def run(self, group: int) -> None:
        """Carries out what stands first at both its ends."""
        firsts = {rank: queue[0] for (number, rank), queue in self.calls.items() if number == group and queue}
        for rank, call in firsts.items():
            for end in [end for end in call.left if end.sends]:
                other = firsts.get(end.peer)
                met = next((e for e in other.left if not e.sends and e.peer == rank), None) if other else None
                if other is None or met is None:
                    continue
                assert met.tag == end.tag, f"rank {rank} sends {end.tag}, and rank {end.peer} receives {met.tag}"
                met.tensor.view(-1).copy_(end.tensor.view(-1))
                call.left.remove(end)
                other.left.remove(met)
        done = [rank for rank, call in firsts.items() if not call.left]
        for rank in done:
            self.calls[group, rank].popleft()
        if done:
            self.run(group)


class Nccl(Threaded):
    """The transport of one rank."""

    def __init__(self, rank: int, exchange: Mailboxes, queues: Queues) -> None:
        self.queues, self.met = queues, set[int]()
        super().__init__(rank, exchange)

    def start_exchange(self, into: Ends, parts: Ends, group: RankGroup, tag: int = 0) -> Exchange:
        ends = [*(End(False, peer, tag, x) for peer, x in into), *(End(True, peer, tag, x) for peer, x in parts)]
        call, queues, number = Call(self.rank, self, ends), self.queues, group.number
        if ends:
            queues.calls.setdefault((number, self.rank), deque()).append(call)
        queues.had |= {(number, self.rank, end.sends, end.peer) for end in ends}
        queues.run(number)
        others = {(number, end.peer, not end.sends, self.rank) for end in ends}
        self.shared.wait(self.rank, lambda: others <= queues.had, lambda: f"ranks {[e.peer for e in ends]} to connect")
        return Exchange([call] * len(into), [call] * len(parts))

    def _join(self, kind: str, into: torch.Tensor, x: torch.Tensor, line: RankGroup) -> Meeting:
        meeting = super()._join(kind, into, x, line)
        if line.number not in self.met:
            self.met.add(line.number)
            meeting.wait()
        return meeting
