"""The transport of ranks that are threads: in memory, with checks that torch.distributed does not make.

The last rank to join a collective carries it out for all. Calls of different kinds, shapes or dtypes in one collective
are an error that names the ranks; so are sent boxes that no rank receives.

Ranks wait where they would with NCCL, which is wherever they would with gloo, too. NCCL knows no tags: between two
ranks of a group, sends meet receives in their order. A group's exchanges run one after another on each rank: one is
done when its messages stand first in the queues of both their ranks. The first exchange of two ranks, and the first
collective of a group, connects them: it returns when all of them have come.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ssdsl.runtime.ranks.transport import Ends, Merge, Rows, StartedExchange

Wait = Callable[[int, Callable[[], bool], Callable[[], str]], None]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A group: its number in the order of creation, and its ranks."""

    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """One rank's call of a collective: a text that must be equal on all ranks (`says`), and its tensors."""

    kind: str
    into: torch.Tensor
    x: torch.Tensor

    @property
    def says(self) -> str:
        return f"{self.kind} of {str(self.x.dtype).removeprefix('torch.')} {list(self.x.shape)}"


@dataclass(slots=True)
class Meeting:
    """One collective; also the work object that a rank waits for."""

    exchange: "Mailboxes"
    line: RankGroup
    rank: int
    calls: dict[int, _Call]

    def is_completed(self) -> bool:
        return len(self.calls) == len(self.line.ranks)

    def wait(self) -> None:
        self.exchange.wait(self.rank, self.is_completed, self._missing)

    def _missing(self) -> str:
        absent = [r for r in self.line.ranks if r not in self.calls]
        return f"ranks {absent} to join {self.calls[self.rank].says} of ranks {list(self.line.ranks)}"


@dataclass(eq=False, slots=True)
class MessageEnd:
    """One end of a message: a rank sends the tensor to the peer, or receives it. `version` is that of a sent tensor."""

    rank: int
    sends: bool
    peer: int
    tag: int
    tensor: torch.Tensor
    version: int

    @property
    def says(self) -> str:
        """A text of what the rank waits for."""
        return f"rank {self.peer} to {'receive' if self.sends else 'send'} what is tagged {self.tag}"


@dataclass(eq=False, slots=True)
class Messages:
    """Messages of one rank that start together, those of them that are not done; also the work object."""

    exchange: "Mailboxes"
    rank: int
    left: list[MessageEnd]

    def is_completed(self) -> bool:
        return not self.left

    def wait(self) -> None:
        self.exchange.wait(self.rank, self.is_completed, lambda: self.left[0].says)


@dataclass(slots=True)
class Mailboxes:
    """The shared state of all ranks. `wait` lets other ranks run; `failed` makes the error for a kind and a text."""

    count: int
    wait: Wait
    failed: Callable[[str, str], Exception]
    lines: list[RankGroup] = field(default_factory=list)
    meetings: dict[tuple[int, int], dict[int, _Call]] = field(default_factory=dict)
    queues: dict[int, dict[int, deque[Messages]]] = field(default_factory=dict)  # by group and rank: not done yet
    connected: set[tuple[int, int, bool, int]] = field(default_factory=set)  # the ends that groups and ranks have had

    def check_empty(self) -> None:
        """Raises if a rank was still waiting at the end."""
        for (number, _), calls in self.meetings.items():
            if len(calls) < len(self.lines[number].ranks):
                says = next(iter(calls.values())).says
                raise self.failed(
                    "mismatch", f"only ranks {sorted(calls)} of {self.lines[number].ranks} came to {says}"
                )
        queues = (queue for of_group in self.queues.values() for queue in of_group.values())
        for end in (end for queue in queues for messages in queue for end in messages.left):
            what = "sends what nobody receives" if end.sends else "waits for what nobody sends"
            raise self.failed("mismatch", f"rank {end.rank} {what}: rank {end.peer}, tag {end.tag}")

    def deliver(self, group: int) -> None:
        """Carries out the messages of a group that stand first at both their ends."""
        queues = self.queues[group]
        done = [*queues]
        while done:
            firsts = {rank: queue[0] for rank, queue in queues.items() if queue}
            for rank, messages in firsts.items():
                for end in [end for end in messages.left if end.sends and end.peer in firsts]:
                    there = firsts[end.peer].left
                    met = next((e for e in there if not e.sends and e.peer == rank), None)
                    if met is not None:
                        self._copy(end, met)
                        messages.left.remove(end)
                        there.remove(met)
            done = [rank for rank, messages in firsts.items() if not messages.left]
            for rank in done:
                queues[rank].popleft()

    def _copy(self, sent: MessageEnd, received: MessageEnd) -> None:
        between, x, into = f"rank {sent.rank} sends rank {sent.peer}, tag {sent.tag},", sent.tensor, received.tensor
        if received.tag != sent.tag:
            raise self.failed("mismatch", f"{between} what it receives with tag {received.tag}")
        if x.dtype != into.dtype or x.numel() != into.numel():
            raise self.failed("mismatch", f"{between} {x.dtype} {list(x.shape)} for {into.dtype} {list(into.shape)}")
        if x._version != sent.version:
            raise self.failed("mismatch", f"{between} a tensor that was changed while it travelled")
        into.view(-1).copy_(x.view(-1))


class Threaded:
    """The transport of one rank."""

    def __init__(self, rank: int, exchange: Mailboxes) -> None:
        self._rank, self.shared = rank, exchange
        self.made = 0
        self.turn: dict[int, int] = {}  # the number of collectives of each group that this rank has joined
        self.met = set[int]()  # the groups in which it has joined a collective
        self.everybody = self.new_group()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self.shared.count

    def new_control_group(self) -> RankGroup:
        return self.new_group()

    def new_group(self, ranks: Sequence[int] | None = None) -> RankGroup:
        line = RankGroup(self.made, tuple(range(self.shared.count)) if ranks is None else tuple(ranks))
        if self.made == len(self.shared.lines):
            self.shared.lines.append(line)
        if (known := self.shared.lines[self.made]) != line:
            raise self.shared.failed("mismatch", f"makes a group of ranks {line.ranks}, others one of {known.ranks}")
        self.made += 1
        return line

    def barrier(self) -> None:
        self._join("barrier", torch.zeros(1), torch.zeros(1), self.everybody).wait()

    def all_reduce(self, x: torch.Tensor, group: RankGroup, merge: Merge = "sum") -> None:
        self._join(f"all_reduce ({merge})", x, x, group).wait()

    def start_all_reduce(self, x: torch.Tensor, group: RankGroup) -> Meeting:
        return self._join("all_reduce (sum)", x, x, group)

    def all_gather(self, into: torch.Tensor, x: torch.Tensor, group: RankGroup) -> None:
        assert into.numel() == x.numel() * len(group.ranks)
        self._join("all_gather", into, x, group).wait()

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: RankGroup) -> None:
        assert x.numel() == into.numel() * len(group.ranks)
        self._join("reduce_scatter", into, x, group).wait()

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor, group: RankGroup, rows: Rows | None = None) -> None:
        if rows is not None:
            received, sent = (
                [*zip(group.ranks, torch.split(t, n), strict=True)] for t, n in zip((into, x), rows, strict=True)
            )
            self.start_exchange(received, sent, group).wait()
            return
        assert into.numel() == x.numel() and x.numel() % len(group.ranks) == 0
        self._join("all_to_all", into, x, group).wait()

    def start_exchange(self, into: Ends, parts: Ends, group: RankGroup, tag: int = 0) -> StartedExchange:
        given = [*((False, peer, x) for peer, x in into), *((True, peer, x) for peer, x in parts)]
        assert all(x.is_contiguous() for _, _, x in given)
        ends = [MessageEnd(self._rank, sends, peer, tag, x, x._version) for sends, peer, x in given]
        messages, shared, number = Messages(self.shared, self._rank, [*ends]), self.shared, group.number
        if ends:
            shared.queues.setdefault(number, {}).setdefault(self._rank, deque()).append(messages)
            shared.connected |= {(number, self._rank, end.sends, end.peer) for end in ends}
            shared.deliver(number)
            others = {(number, end.peer, not end.sends, self._rank) for end in ends}
            said = f"{ends[0].says}, or to connect"  # the wait must not keep the tensors
            shared.wait(self._rank, lambda: others <= shared.connected, lambda: said)
        return StartedExchange([messages] * len(into), [messages] * len(parts))

    def _join(self, kind: str, into: torch.Tensor, x: torch.Tensor, line: RankGroup) -> Meeting:
        assert self._rank in line.ranks and into.is_contiguous() and x.is_contiguous()
        turn = self.turn.get(line.number, 0)
        self.turn[line.number] = turn + 1
        calls = self.shared.meetings.setdefault((line.number, turn), {})
        mine = calls[self._rank] = _Call(kind, into.detach(), x.detach())
        for rank, other in calls.items():
            if other.says != mine.says:
                both = f"{mine.says} meets {other.says} of rank {rank}"
                raise self.shared.failed("mismatch", f"{both}, collective {turn} of ranks {list(line.ranks)}")
        if len(calls) == len(line.ranks):
            del self.shared.meetings[line.number, turn]
            _carry_out(kind, [calls[r] for r in line.ranks])
        meeting = Meeting(self.shared, line, self._rank, calls)
        if line.number not in self.met:
            self.met.add(line.number)
            meeting.wait()
        return meeting


@torch.no_grad()
def _carry_out(kind: str, calls: list[_Call]) -> None:
    given = torch.stack([c.x.reshape(-1) for c in calls])
    match kind:
        case "all_reduce (max)":
            results = [given.amax(0)] * len(calls)
        case "all_reduce (sum)":
            results = [given.sum(0)] * len(calls)
        case "all_gather":
            results = [given.flatten()] * len(calls)
        case "reduce_scatter":
            results = list(given.sum(0).chunk(len(calls)))
        case "all_to_all":
            results = list(given.view(len(calls), len(calls), -1).transpose(0, 1).flatten(1))
        case _:
            return
    for call, result in zip(calls, results, strict=True):
        call.into.view(-1).copy_(result)
