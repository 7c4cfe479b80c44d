"""The transport of ranks that are threads: in memory, with checks that torch.distributed does not make.

The last rank to join a collective carries it out for all. Calls of different kinds, shapes or dtypes in one collective
are an error that names the ranks; so are sent boxes that no rank receives, and collectives that nobody awaits.

Ranks wait wherever a backend might let them wait. A GPU can hold up everything that was started after communication,
until that is done: so a rank that starts some goes on when all other ranks that take part have started it, too. Sent
messages are read as late as they can be, when the receiver waits for them. What is in flight must not change until it
is awaited, and what arrives is NaN until then: whoever reads it too early computes a wrong number, every time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch

from ssdsl.runtime.ranks.transport import Ends, Merge, PendingWork, Rows, StartedExchange, Transport, Works

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


@dataclass(eq=False, slots=True)
class MessageEnd:
    """One end of a message: a rank sends the tensor to the peer, or receives it; also the work object of this end.
    `version` is that of a sent tensor. `met` is the other end, once that has been started."""

    shared: "Mailboxes"
    rank: int
    sends: bool
    peer: int
    tag: int
    tensor: torch.Tensor
    version: int
    met: "MessageEnd | None" = None
    done: bool = False

    def is_completed(self) -> bool:
        return self.done

    def wait(self) -> None:
        if not self.sends and not self.done:
            assert self.met is not None
            self.shared.deliver(self.met, self)
        what = self.says
        self.shared.wait(self.rank, self.is_completed, lambda: what)

    @property
    def says(self) -> str:
        """A text of what the rank waits for."""
        return f"rank {self.peer} to {'receive' if self.sends else 'send'} what is tagged {self.tag}"


@dataclass(eq=False, slots=True)
class Arrival:
    """What a collective brings a rank, also its work object: `result` goes into the tensor `into` when it is awaited.
    `versions` are those of the tensors in flight."""

    shared: "Mailboxes"
    rank: int
    call: "_Call"
    result: torch.Tensor | None = None
    versions: tuple[int, int] = (0, 0)

    def starts(self, result: torch.Tensor) -> None:
        """Notes what will arrive, and spoils the tensor into which it will."""
        self.result = result
        if self.call.into.is_floating_point() or self.call.into.is_complex():
            self.call.into.fill_(float("nan"))
        self.versions = self.call.into._version, self.call.x._version
        self.shared.arriving.add(self)

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        result, self.result = self.result, None
        if result is None:
            return
        self.shared.arriving.remove(self)
        if self.versions != (self.call.into._version, self.call.x._version):
            raise self.shared.failed(
                "mismatch", f"rank {self.rank} changes a tensor while {self.call.says} is under way"
            )
        with torch.no_grad():
            self.call.into.view(-1).copy_(result)


@dataclass(slots=True)
class Mailboxes:
    """The shared state of all ranks. `wait` lets other ranks run; `failed` makes the error for a kind and a text."""

    count: int
    wait: Wait
    failed: Callable[[str, str], Exception]
    lines: list[RankGroup] = field(default_factory=list)
    meetings: dict[tuple[int, int], dict[int, Arrival]] = field(default_factory=dict)
    started: dict[tuple[int, int], list[MessageEnd]] = field(default_factory=dict)  # by group and rank: not met yet
    travelling: set[MessageEnd] = field(default_factory=set)  # sent, and not awaited yet
    arriving: set[Arrival] = field(default_factory=set)  # of collectives, and not awaited yet

    def check_empty(self) -> None:
        """Raises if a rank was still waiting at the end."""
        for (number, _), calls in self.meetings.items():
            if len(calls) < len(self.lines[number].ranks):
                says = next(iter(calls.values())).call.says
                raise self.failed(
                    "mismatch", f"only ranks {sorted(calls)} of {self.lines[number].ranks} came to {says}"
                )
        for end in (*(end for ends in self.started.values() for end in ends), *self.travelling):
            what = "sends what nobody receives" if end.sends else "waits for what nobody sends"
            raise self.failed("mismatch", f"rank {end.rank} {what}: rank {end.peer}, tag {end.tag}")

        for arrival in self.arriving:
            raise self.failed("mismatch", f"rank {arrival.rank} does not wait for {arrival.call.says}")

    def join_ends(self, group: int, rank: int) -> None:
        """Joins the ends that a rank has started with those of its peers."""
        for end in [*self.started[group, rank]]:
            others = self.started.get((group, end.peer), [])
            other = next((other for other in others if other.peer == rank and other.sends != end.sends), None)
            if other is None:
                continue
            sent = end if end.sends else other
            end.met, other.met = other, end
            self.started[group, rank].remove(end)
            others.remove(other)
            self.travelling.add(sent)

    def deliver(self, sent: MessageEnd, received: MessageEnd) -> None:
        """Carries out a message."""
        self.travelling.remove(sent)
        self._copy(sent, received)
        sent.done = received.done = True
        sent.met = received.met = None

    def _copy(self, sent: MessageEnd, received: MessageEnd) -> None:
        between, x, into = f"rank {sent.rank} sends rank {sent.peer}, tag {sent.tag},", sent.tensor, received.tensor
        if received.tag != sent.tag:
            raise self.failed("mismatch", f"{between} what it receives with tag {received.tag}")
        if x.dtype != into.dtype or x.numel() != into.numel():
            raise self.failed("mismatch", f"{between} {x.dtype} {list(x.shape)} for {into.dtype} {list(into.shape)}")
        if x._version != sent.version:
            raise self.failed("mismatch", f"{between} a tensor that was changed while it travelled")
        into.view(-1).copy_(x.view(-1))


class Threaded(Transport):
    """The transport of a rank that is a thread."""

    def __init__(self, rank: int, exchange: Mailboxes) -> None:
        self._rank, self.shared = rank, exchange
        self.made = 0
        self.turn: dict[int, int] = {}  # the number of collectives of each group that this rank has joined
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

    def start_all_reduce(self, x: torch.Tensor, group: RankGroup, merge: Merge = "sum") -> PendingWork:
        return self._join(f"all_reduce ({merge})", x, x, group)

    def start_all_gather(self, into: torch.Tensor, x: torch.Tensor, group: RankGroup) -> PendingWork:
        assert into.numel() == x.numel() * len(group.ranks)
        return self._join("all_gather", into, x, group)

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: RankGroup) -> PendingWork:
        assert x.numel() == into.numel() * len(group.ranks)
        return self._join("reduce_scatter", into, x, group)

    def start_all_to_all(
        self, into: torch.Tensor, x: torch.Tensor, group: RankGroup, rows: Rows | None = None
    ) -> PendingWork:
        if rows is not None:
            received, sent = (
                [*zip(group.ranks, torch.split(t, n), strict=True)] for t, n in zip((into, x), rows, strict=True)
            )
            return self.start_exchange(received, sent, group)
        assert into.numel() == x.numel() and x.numel() % len(group.ranks) == 0
        return self._join("all_to_all", into, x, group)

    def start_exchange(self, into: Ends, parts: Ends, group: RankGroup, tag: int = 0) -> StartedExchange:
        given = [*((False, peer, x) for peer, x in into), *((True, peer, x) for peer, x in parts)]
        assert all(x.is_contiguous() for _, _, x in given)
        shared, rank = self.shared, self._rank
        ends = [MessageEnd(shared, rank, sends, peer, tag, x, x._version) for sends, peer, x in given]
        if ends:
            left = shared.started[group.number, rank] = [*ends]
            shared.join_ends(group.number, rank)
            shared.wait(rank, lambda: not left, lambda: left[0].says)
        return StartedExchange(ends[: len(into)], ends[len(into) :])

    def start_broadcast(self, x: torch.Tensor, source: int, group: RankGroup) -> Works:
        self._join(f"broadcast from rank {source}", x, x, group)  # all are there; what is sent is read later
        others = [(rank, x) for rank in group.ranks if rank != source]
        into, parts = ([], others) if self._rank == source else ([(source, x)], [])
        started = self.start_exchange(into, parts, group)
        return Works((*started.arriving, *started.leaving))

    def _join(self, kind: str, into: torch.Tensor, x: torch.Tensor, line: RankGroup) -> PendingWork:
        assert self._rank in line.ranks and into.is_contiguous() and x.is_contiguous()
        turn = self.turn.get(line.number, 0)
        self.turn[line.number] = turn + 1
        key, meetings = (line.number, turn), self.shared.meetings
        calls = meetings.setdefault(key, {})
        mine = _Call(kind, into.detach(), x.detach())
        arrival = calls[self._rank] = Arrival(self.shared, self._rank, mine)
        for rank, other in calls.items():
            if other.call.says != mine.says:
                both = f"{mine.says} meets {other.call.says} of rank {rank}"
                raise self.shared.failed("mismatch", f"{both}, collective {turn} of ranks {list(line.ranks)}")
        if len(calls) == len(line.ranks):
            _carry_out(kind, [calls[r] for r in line.ranks])
            del meetings[key]
        says = f"to join {mine.says} of ranks {list(line.ranks)}"  # the wait must not keep the tensors
        self.shared.wait(
            self._rank,
            lambda: key not in meetings,
            lambda: f"ranks {[r for r in line.ranks if r not in meetings[key]]} {says}",
        )
        return arrival


@torch.no_grad()
def _carry_out(kind: str, arrivals: list[Arrival]) -> None:
    given = torch.stack([a.call.x.reshape(-1) for a in arrivals])
    count = len(arrivals)
    match kind:
        case "all_reduce (max)":
            results = [reduce(torch.fmax, given)] * count  # without NaN, as NCCL
        case "all_reduce (sum)":
            results = [given.sum(0)] * count
        case "all_gather":
            results = [given.flatten()] * count
        case "reduce_scatter":
            results = list(given.sum(0).chunk(count))
        case "all_to_all":
            results = list(given.view(count, count, -1).transpose(0, 1).flatten(1))
        case _:
            return
    for arrival, result in zip(arrivals, results, strict=True):
        arrival.starts(result)
