"""The transport of ranks that are threads: in memory, with checks that torch.distributed does not make.

The last rank to join a collective carries it out for all. Calls of different kinds, shapes or dtypes in one collective
are an error that names the ranks; so are sent boxes that no rank receives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ssdsl.runtime.ranks.transport import Ends, Exchange, Merge, Rows

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


@dataclass(slots=True)
class MailboxMessage:
    """A message, once it is sent or asked for; also the work object of either side."""

    exchange: "Mailboxes"
    source: int
    target: int
    tag: int
    sent: torch.Tensor | None = None
    version: int = 0
    into: torch.Tensor | None = None
    is_there: bool = False

    def is_completed(self) -> bool:
        return self.is_there

    def wait(self) -> None:
        missing = self.source if self.sent is None else self.target
        waits = self.target if self.sent is None else self.source
        word = "to send" if self.sent is None else "to receive"
        said = f"rank {missing} {word} what is tagged {self.tag}"
        self.exchange.wait(waits, self.is_completed, lambda: said)

    def match(self) -> None:
        if self.sent is None or self.into is None:
            return
        between = f"rank {self.source} sends rank {self.target}, tag {self.tag},"
        if self.sent.dtype != self.into.dtype or self.sent.numel() != self.into.numel():
            wanted = f"{self.into.dtype} {list(self.into.shape)}"
            raise self.exchange.failed("mismatch", f"{between} {self.sent.dtype} {list(self.sent.shape)} for {wanted}")
        if self.sent._version != self.version:
            raise self.exchange.failed("mismatch", f"{between} a tensor that was changed while it travelled")
        self.into.view(-1).copy_(self.sent.view(-1))
        self.sent, self.into, self.is_there = None, None, True


@dataclass(slots=True)
class Mailboxes:
    """The shared state of all ranks. `wait` lets other ranks run; `failed` makes the error for a kind and a text."""

    count: int
    wait: Wait
    failed: Callable[[str, str], Exception]
    lines: list[RankGroup] = field(default_factory=list)
    meetings: dict[tuple[int, int], dict[int, _Call]] = field(default_factory=dict)
    pieces: dict[tuple[int, int, int, int], list[MailboxMessage]] = field(default_factory=dict)

    def check_empty(self) -> None:
        """Raises if a rank was still waiting at the end."""
        for (number, _), calls in self.meetings.items():
            if len(calls) < len(self.lines[number].ranks):
                says = next(iter(calls.values())).says
                raise self.failed(
                    "mismatch", f"only ranks {sorted(calls)} of {self.lines[number].ranks} came to {says}"
                )
        for piece in (p for box in self.pieces.values() for p in box if not p.is_completed()):
            what = "sends what nobody receives" if piece.sent is not None else "never sends what is waited for"
            raise self.failed("mismatch", f"rank {piece.source} {what}: to rank {piece.target}, tag {piece.tag}")


class Threaded:
    """The transport of one rank."""

    def __init__(self, rank: int, exchange: Mailboxes) -> None:
        self._rank, self.shared = rank, exchange
        self.made = 0
        self.turn: dict[int, int] = {}  # the number of collectives of each group that this rank has joined
        self.posted: dict[tuple[bool, int, int, int], int] = {}  # the number of messages in each direction
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

    def start_exchange(self, into: Ends, parts: Ends, group: RankGroup, tag: int = 0) -> Exchange:
        arriving = [self._receive(x, peer, group, tag) for peer, x in into]
        return Exchange(arriving, [self._send(x, peer, group, tag) for peer, x in parts])

    def _send(self, x: torch.Tensor, peer: int, group: RankGroup, tag: int) -> MailboxMessage:
        assert x.is_contiguous()
        piece = self._piece(True, self._rank, peer, group, tag)
        piece.sent, piece.version = x, x._version
        piece.match()
        return piece

    def _receive(self, into: torch.Tensor, peer: int, group: RankGroup, tag: int) -> MailboxMessage:
        assert into.is_contiguous()
        piece = self._piece(False, peer, self._rank, group, tag)
        piece.into = into
        piece.match()
        return piece

    def _piece(self, sends: bool, source: int, target: int, group: RankGroup, tag: int) -> MailboxMessage:
        """The message of this call; messages with one tag arrive in the order in which they are sent."""
        key = group.number, source, target, tag
        place = self.posted.get((sends, group.number, target if sends else source, tag), 0)
        self.posted[sends, group.number, target if sends else source, tag] = place + 1
        box = self.shared.pieces.setdefault(key, [])
        if place == len(box):
            box.append(MailboxMessage(self.shared, source, target, tag))
        return box[place]

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
        return Meeting(self.shared, line, self._rank, calls)


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
