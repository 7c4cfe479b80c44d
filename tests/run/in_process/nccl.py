"""A transport of threads that waits where NCCL does.

NCCL knows no tags: between two ranks of a group, sends meet receives in their order. A group's calls run one after
another on each rank: a call is done when its ends are the first in the queues of both ranks. The first call between two
ranks, or of a collective, connects them, and returns when all of them have made it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.run.in_process.mailbox import Mailboxes, Meeting, RankGroup, Threaded


@dataclass
class End:
    """One end of a message: this rank sends to the peer, or receives from it."""

    sends: bool
    peer: int
    tag: int
    tensor: torch.Tensor


@dataclass
class Call:
    """Messages of one rank that start together; also the work object."""

    rank: int
    transport: "Nccl"
    left: list[End]

    def is_completed(self) -> bool:
        return not self.left

    def wait(self) -> None:
        self.transport.shared.wait(self.rank, self.is_completed, lambda: f"{len(self.left)} messages")


@dataclass
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

    def isend(self, x: torch.Tensor, peer: int, group: RankGroup, tag: int) -> Any:
        return self._call([End(True, peer, tag, x)], group)

    def irecv(self, into: torch.Tensor, peer: int, group: RankGroup, tag: int) -> Any:
        return self._call([End(False, peer, tag, into)], group)

    def start_exchange(
        self, into: Mapping[int, torch.Tensor], parts: Mapping[int, torch.Tensor], group: RankGroup
    ) -> Any:
        received = [End(False, peer, 0, x) for peer, x in into.items()]
        return self._call([*received, *(End(True, peer, 0, x) for peer, x in parts.items())], group)

    def _call(self, ends: Sequence[End], group: RankGroup) -> Call:
        call, queues, number = Call(self.rank, self, list(ends)), self.queues, group.number
        if ends:
            queues.calls.setdefault((number, self.rank), deque()).append(call)
        queues.had |= {(number, self.rank, end.sends, end.peer) for end in ends}
        queues.run(number)
        others = {(number, end.peer, not end.sends, self.rank) for end in ends}
        self.shared.wait(self.rank, lambda: others <= queues.had, lambda: f"ranks {[e.peer for e in ends]} to connect")
        return call

    def _join(self, kind: str, into: torch.Tensor, x: torch.Tensor, line: RankGroup) -> Meeting:
        meeting = super()._join(kind, into, x, line)
        if line.number not in self.met:
            self.met.add(line.number)
            meeting.wait()
        return meeting
